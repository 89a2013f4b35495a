#!/usr/bin/env python3
"""Make docs/results.md and the table of README.md from the newest file of bench/results. No argument."""
import glob
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- made by bench/make_tables.py -->", "<!-- end -->"


def newest(kind):
    """The results of the latest time in the files themselves, None when there are none."""
    results = [json.load(open(path)) for path in glob.glob(os.path.join(ROOT, "bench", "results", kind + "-*.json"))]
    return max(results, key=lambda r: r["time"]) if results else None


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def number(value, digits):
    return "-" if value is None else "%.*f" % (digits, value)


def source(results, part):
    return "%s; commit %s, %s. `%s`" % (results["machine"], results["commit"], results["date"], results[part]["command"])


def demo_rows(results):
    r = results["demo"]["result"]
    hits = sum(layer["hits"] for layer in r["layers"] if not layer["dense"])
    misses = sum(layer["misses"] for layer in r["layers"] if not layer["dense"])
    return [
        ["KV rows on the device", "%.1f MB" % (r["device_bytes"] / 1e6), "%.1f MB" % (r["resident_bytes"] / 1e6),
         "%.2fx smaller" % (r["resident_bytes"] / r["device_bytes"])],
        ["decode", "%.1f tokens/s" % r["decode_tokens_per_second"], "%.1f tokens/s" % r["resident_tokens_per_second"],
         "%.3fx" % (r["decode_tokens_per_second"] / r["resident_tokens_per_second"])],
        ["share of a step in swap-in", "%.2f%% at %.1f%% hits, and %.2f%% for the two dense layers"
         % (100 * r["swap_in_share_selecting"], 100 * hits / (hits + misses), 100 * r["swap_in_share_dense"]), "-", ""],
        ["logits, %d steps" % r["verify"]["steps"], "bit-identical" if r["verify"]["identical"] else "DIFFER", "reference", ""],
    ]


def demo_table(results):
    r = results["demo"]["result"]
    head = ["SmolLM2-135M, %d tokens of text + %d generated" % (r["prompt_tokens"], r["generated_tokens"]),
            "top-k %d, %d slots" % (r["top_k"], r["slots"]), "all resident", ""]
    return table(head, demo_rows(results))


def swap_in_table(results):
    rows = [[number(r["miss_percent"], 1), number(r["rows"], 0), number(r["resolve_us"], 2), number(r["swap_in_us"], 2),
             number(r["fetch_us"], 2), number(r["gather_us"], 2), number(r["of_gather_percent"], 0)]
            for r in results["swap_in"]["result"]["rows"]]
    return table(["misses %", "rows", "resolve us", "swap-in us", "fetch us", "memcpy gather us", "fetch, % of gather"], rows)


def sweep_table(results):
    rows = [[str(int(r["groups_in_turn"])), str(int(r["context_tokens"])), number(r["resolve_us"], 2),
             number(r["deviation_percent"], 1)] for r in results["sweep_context"]["result"]["rows"]]
    return table(["groups in turn", "context", "resolve us", "deviation %"], rows)


CHOSEN = {1: (8, 0), 8: (8, 0), 32: (2, 16), 128: (1, 16)}  # parts and window that the backend takes on an H200


def cuda_rows(results):
    rows = []
    for proto in results["prototype"]:
        batch, misses = proto["batch"], proto["misses_percent"]
        parts, window = CHOSEN[batch]
        same = [r for r in results["swap_in"] if r["batch"] == batch and r["misses_percent"] == misses and r["parts"] == parts]
        ours = [r for r in same if r["window"] == window] or [r for r in same if r["window"] == 0]
        if ours:
            rows.append([str(batch), number(misses, 1), number(ours[0]["swap_in_us"], 1), number(proto["swap_in_us"], 1),
                         "%.2f" % (ours[0]["swap_in_us"] / proto["swap_in_us"]), number(ours[0]["swap_in_swept_us"], 1)])
    return rows


def cuda_section(results):
    return "\n\n".join([
        "## Swap-in on the GPU, so far", results["shape"] + ". " + results["note"] + ". The prototype has its best cluster size in "
        "every cell; ours is what the backend takes for the batch.",
        table(["batch", "misses %", "swap-in us", "prototype us", "ratio", "L2 swept, us"], cuda_rows(results)),
        "%s; %s. %s" % (results["machine"], results["date"], results["command"])])


def main():
    results = newest("cpu")
    if not results:
        sys.exit("make_tables.py: bench/results has no measurement; run `make results`")
    demo = demo_table(results) + "\n\n" + source(results, "demo").replace("hisparse run", "hisparse run", 1)
    text = "\n\n".join([
        "# Results", "Made by `bench/make_tables.py` from `bench/results/`; `make results` measures anew.",
        "## The demo", demo, "prefill: %.0f tokens/s" % results["demo"]["result"]["prefill_tokens_per_second"],
        "## Swap-in on the CPU", "One request, one core, k 2048, 4096 slots, 656-byte rows over 128K tokens; medians a request. "
        "The gather copies the same rows into the same slots with memcpy, one after the other.", swap_in_table(results),
        source(results, "swap_in"), "## Context",
        "Resolve without misses. One group by itself stays in the nearest caches; the lines that eight in turn touch at a million "
        "tokens do not fit the L2 (1 MB here).", sweep_table(results), source(results, "sweep_context")])
    cuda = newest("h200-swap_in")
    text += ("\n\n" + cuda_section(cuda) if cuda else "") + "\n"
    with open(os.path.join(ROOT, "docs", "results.md"), "w") as file:
        file.write(text)
    path = os.path.join(ROOT, "README.md")
    readme = open(path).read()
    made = "%s\n%s\n%s" % (BEGIN, demo, END)
    readme = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: made, readme, flags=re.S)
    with open(path, "w") as file:
        file.write(readme)


if __name__ == "__main__":
    main()
