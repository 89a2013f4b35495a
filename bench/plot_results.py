#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The charts of `hisparse report` as figures for papers; needs matplotlib.

usage: plot_results.py [--format png|svg|pdf] OUT_DIR RESULT.json...

RESULT.json: what `hisparse sweep`, `bench decode-path` or `bench swap-in` wrote with --json, or a file with several of those.
Figures are OUT_DIR/<file>[-<part>]-<chart>.<format>.
"""
import argparse
import json
import os
import re
import sys

from matplotlib.figure import Figure

CASES = (("miss_percent", "%g%% misses"), ("group_layers", "group of %g"), ("context_tokens", "%g tokens"), ("slots", "%g slots"),
         ("row_bytes", "%g B"), ("cold", "cold %g"), ("groups_in_turn", "%g groups"))


def distinct(rows, key):
    return list(dict.fromkeys(row.get(key) for row in rows))


def case_names(rows):
    """What tells a row from the others, as text."""
    told = [(key, form) for key, form in CASES if len(distinct(rows, key)) > 1]
    return [", ".join(form % row[key] for key, form in told if row.get(key) is not None) for row in rows]


def figure(height=3.2):
    made = Figure(figsize=(6.4, height), layout="constrained")
    return made, made.add_subplot()


def miss_curve(rows):
    made, axes = figure()
    for policy in distinct(rows, "policy"):
        line = [row for row in rows if row["policy"] == policy]
        axes.plot([row["slots"] for row in line], [row["missed_percent"] for row in line], marker="o", markersize=3,
                  linestyle="--" if policy == "belady" else "-", label=policy)
    axes.set(xlabel="slots", ylabel="look-ups missed, %", ylim=(0, None), xlim=(0, None))
    axes.legend()
    return made


def heat_map(rows):
    slots, layers = distinct(rows, "slots"), distinct(rows, "layer")
    missed = {(row["layer"], row["slots"]): row["missed_percent"] for row in rows}
    made, axes = figure(1.5 + 0.08 * len(layers))
    picture = axes.imshow([[missed.get((layer, n), float("nan")) for n in slots] for layer in layers], aspect="auto", cmap="viridis", vmin=0)
    axes.set(xlabel="slots", ylabel="layer", xticks=range(len(slots)), xticklabels=slots)
    step = len(layers) // 20 + 1
    axes.set_yticks(range(0, len(layers), step), layers[::step])
    made.colorbar(picture, label="look-ups missed, %")
    return made


def bars(names, parts, unit):
    """parts: {name: length of every bar}, one behind the other."""
    made, axes = figure(1.2 + 0.22 * len(names))
    start = [0.0] * len(names)
    for part, lengths in parts.items():
        axes.barh(range(len(names)), lengths, left=start, label=part)
        start = [a + b for a, b in zip(start, lengths)]
    axes.set(xlabel=unit, yticks=range(len(names)), yticklabels=names)
    axes.invert_yaxis()
    made.legend(loc="outside upper right", ncols=len(parts))
    return made


def exposure(rows):
    """Mechanism, what is left of the link, and what was hidden of it; less than nothing is drawn as nothing."""
    links = [(row["link_waiting_us"], row.get("link_prefetched_us")) for row in rows]
    parts = {"mechanism": [max(row["mechanism_us"], 0) for row in rows],
             "link": [max(waiting if prefetched is None else prefetched, 0) for waiting, prefetched in links],
             "hidden": [0 if prefetched is None else max(waiting - prefetched, 0) for waiting, prefetched in links]}
    return bars(case_names(rows), parts, "us a layer beyond all resident")


def percentiles(rows):
    ways = [key[:-len("_p99_us")] for key in rows[0] if key.endswith("_p99_us")]
    timed = [(name + ", " * bool(name) + way, row[way + "_us"], row[way + "_p99_us"]) for name, row in zip(case_names(rows), rows)
             for way in ways if row.get(way + "_p99_us") is not None]
    return bars([name for name, _, _ in timed],
                {"median": [median for _, median, _ in timed], "p99": [p99 - median for _, median, p99 in timed]}, "us")


def by_batch(rows, name, draw):
    """Batches are far apart in time: each has a figure of its own."""
    batches = distinct(rows, "batch")
    return {name if batch is None else "%s-batch%s" % (name, batch): draw([row for row in rows if row.get("batch") == batch])
            for batch in batches}


def sweep_figures(rows):
    layers = [row for row in rows if row["layer"] is not None]
    maps = {"layers-" + policy: heat_map([row for row in layers if row["policy"] == policy]) for policy in distinct(layers, "policy")}
    return {"misses": miss_curve([row for row in rows if row["layer"] is None]), **maps}


def path_figures(rows):
    return {**by_batch(rows, "exposure", exposure), **by_batch(rows, "percentiles", percentiles)}


def bench_figures(rows):
    return by_batch(rows, "percentiles", percentiles)


KINDS = {"sweep": sweep_figures, "decode-path": path_figures, "swap-in": bench_figures, "swap-in sweep-context": bench_figures}


def results(whole):
    """{part: rows and kind} of a file: the whole, or its members, or `result` of those, or what is in a list of them."""
    parts = {"": whole, **{key: value.get("result", value) for key, value in whole.items() if isinstance(value, dict)},
             **{"%s%d" % (key, i): value for key, list_ in whole.items() if isinstance(list_, list)
                for i, value in enumerate(list_) if isinstance(value, dict)}}
    return {part: (result["rows"], KINDS[result["what"]]) for part, result in parts.items() if result.get("what") in KINDS}


def figures(path):
    """{name: Figure} of all charts of a file."""
    with open(path) as file:
        whole = json.load(file)
    found = results(whole) if isinstance(whole, dict) else {}
    if not found:
        sys.exit("%s: no result that can be drawn; those are %s" % (path, ", ".join(KINDS)))
    stem = os.path.splitext(os.path.basename(path))[0]
    return {re.sub(r"[^\w.-]+", "_", "-".join(filter(None, (stem, part, name)))): made
            for part, (rows, draw) in found.items() for name, made in draw(rows).items()}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--format", choices=("png", "svg", "pdf"), default="png")
    options.add_argument("out_dir", metavar="OUT_DIR")
    options.add_argument("files", metavar="RESULT.json", nargs="+")
    given = options.parse_args()
    os.makedirs(given.out_dir, exist_ok=True)
    for path in given.files:
        for name, made in figures(path).items():
            target = os.path.join(given.out_dir, name + "." + given.format)
            made.savefig(target, dpi=200)
            print(target)


if __name__ == "__main__":
    main()
