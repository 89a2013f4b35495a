#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Model cards from results: make_card.py RESULTS.json... MODELS. Writes MODELS/NAME.md beside NAME.safetensors; every number
comes from the JSON. Where a model is in several results, later ones went on training or only measured: the last has its shape."""
import hashlib
import json
import pathlib
import sys

ABOUT = {
    "mla_dsa": "Latent attention with the lightning indexer of DeepSeek sparse attention: every layer attends to the top_k "
               "tokens with the greatest index scores.",
    "gqa_nsa": "Native sparse attention: compressed, selected and window branches with gates, trained first with all tokens in the "
               "selected branch, then sparse. "
               "Dense means that the selected branch sees all tokens.",
    "gqa_quest": "Grouped-query attention trained dense; at inference all but the first layers attend to the pages that "
                 "Quest's bounds rank highest.",
}


def number(entry, digits=4):
    if entry["error"] is None:
        return f"{entry['mean']:.{digits}f}"
    return f"{entry['mean']:.{digits}f} ± {entry['error']:.{digits}f}"


def quality(part):
    if not part or "failed" in part:
        return ["Not measured in this run."]
    low, high = part["short_context_bytes"]
    rows = [(mode, f"all before it, {part['length']} bytes at most", mode) for mode in ("dense", "sparse")]
    rows += [(mode, f"the last {low} to {high} bytes", f"short_{mode}") for mode in ("dense", "sparse")]
    saved = [f"{number(part[f'short_minus_{mode}'])} {mode}" for mode in ("dense", "sparse") if f"short_minus_{mode}" in part]
    return [f"Bits per byte of the last {part['scored']} bytes of {part['dense']['documents']} held-out documents of "
            f"{part['length']} bytes (mean ± standard error over documents).", "",
            "| attention | context | bits per byte |", "| --- | --- | --- |",
            *(f"| {mode} | {context} | {number(part[key])} |" for mode, context, key in rows if key in part), "",
            f"The long context saves {' and '.join(saved)}; sparse attention costs {number(part['sparse_minus_dense'])}.", ""]


def needles(part):
    if not part or "failed" in part:
        return ["Not measured in this run."]
    depths = list(next(iter(part["dense"].values())))
    lines = ["Share of needles whose five digits are all right, by the needle's depth in the document (documents have one at "
             "each depth and ask for all of them at the end).", "",
             f"| attention | length | {' | '.join(depths)} | asked at each |", "| --- | --- |" + " --- |" * (len(depths) + 1)]
    for mode, lengths in part.items():
        for length, cells in lengths.items():
            shares = [f"{right / asked:.0%}" if asked else "-" for right, asked in cells.values()]
            lines.append(f"| {mode} | {length} | {' | '.join(shares)} | {next(iter(cells.values()))[1]} |")
    return lines


def selector(part):
    if not part or "failed" in part:
        return ["Not measured in this run."]
    return [f"Of {part['queries']} queries in the last part of long held-out documents: the share of selected tokens that are "
            "among the as many tokens with the most attention, and the attention on each of the two sets.", "",
            "| keys | layer | selected | recall | attention on selected | on the best |", "| --- | --- | --- | --- | --- | --- |",
            *(f"| {row['format']} | {row['layer']} | {row['selected']:.0f} | {row['recall']:.1%} | {row['mass']:.1%} | "
              f"{row['mass_of_best']:.1%} |" for row in part["layers"])]


def stage(results, facts, shape):
    """How one part of the training went. Text of what differs from the model's final shape comes last."""
    lengths = ", ".join(f"{tokens / 1e6:.1f} M in windows of {length} ({mode})"
                        for (mode, length), tokens in ((key.split(), n) for key, n in facts["tokens_of_length"].items()))
    other = "".join(f" {key} was {value}." for key, value in facts["shape"].items() if shape[key] != value)
    return (f"`{results['command']}`, {results['date']}: {facts['tokens'] / 1e6:.1f} M bytes in {facts['steps']} steps and {facts['seconds']:.0f} s "
            f"{'from ' + facts['begins_from'] + ' on, ' if facts['begins_from'] else ''}on one {facts['device']} (PyTorch {facts['torch']}, "
            f"seed {facts['seed']}): {lengths}.{other}")


def training(parts, shape):
    facts = parts[-1][1]
    return [*(line for results, of_part in parts for line in (stage(results, of_part, shape), "")),
            f"Muon ({facts['optimizer']['muon_rate']}) for matrices, Adam for the rest; rates and phases follow the clock "
            "(`train/shapes.py`). Needle documents are made while training runs; their keys and values are random.", "",
            "| text | version | licence | bytes trained on | bytes held out |", "| --- | --- | --- | --- | --- |",
            *(f"| {name} | {source['version']} | {source['licence']} | {source['train_bytes']} | {source['valid_bytes']} |"
              for name, source in facts["sources"].items())]


def card(name, file, entries):
    """entries: (results, the model's entry) in order of time; some may have measurements only. Measured is the last shape
    alone; of needles and recall, which are counts, by the longest run."""
    parts = [(results, entry) for results, entry in entries if entry["training"]]
    results, entry = parts[-1]
    facts, data = entry["training"], file.read_bytes()
    measured = [(entry["evaluation"], entry["evaluation"].get("shape") or entry["training"]["shape"]) for _, entry in entries if entry["evaluation"]]
    shape = measured[-1][1] if measured else facts["shape"]
    found = [evaluation for evaluation, of in measured if of == shape]
    most = lambda key: max((evaluation[key] for evaluation in found if key in evaluation), key=asked, default=None)
    return [f"# {name}", "", f"{ABOUT[shape['architecture']]} A byte-level decoder of {facts['parameters'] / 1e6:.1f} M "
            "parameters, made to exercise a sparse cache, not to write: it knows source code and technical prose.", "",
            f"`{file.name}`: {len(data)} bytes, bf16, sha256 `{hashlib.sha256(data).hexdigest()}`. Apache-2.0. Finished on {results['date']}.", "",
            "| shape | |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in shape.items()), "",
            "## Quality", "", *(line for evaluation in found for line in quality(evaluation.get("bits_per_byte"))), "## Needles", "",
            *needles(most("needles")), "", "## Selector", "", *selector(most("recall")), "",
            "## Training", "", *training([(of, part["training"]) for of, part in parts], shape), ""]


def asked(part):
    """How much a part of an evaluation has seen."""
    if "queries" in part:
        return part["queries"]
    return sum(cell[1] for lengths in part.values() for cells in lengths.values() for cell in cells.values())


def main():
    *files, folder = map(pathlib.Path, sys.argv[1:])
    found = {}
    for results in (json.loads(file.read_text()) for file in files):
        for name, entry in results["models"].items():
            found.setdefault(name, []).append((results, entry))
    for name, entries in found.items():
        if any(entry["training"] for _, entry in entries):
            (folder / f"{name}.md").write_text("\n".join(card(name, folder / f"{name}.safetensors", entries)))
        else:
            print(f"{name}: no card, it was not trained to the end")


if __name__ == "__main__":
    main()
