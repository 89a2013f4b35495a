#!/usr/bin/env python3
"""Make docs/results.md and the table of README.md from the newest file of bench/results. No argument."""
import glob
import json
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- made by bench/make_tables.py -->", "<!-- end -->"


def newest(kind):
    paths = glob.glob(os.path.join(ROOT, "bench", "results", kind + "-*.json"))
    return max(paths, key=os.path.getmtime)


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


def main():
    results = json.load(open(newest("cpu")))
    demo = demo_table(results) + "\n\n" + source(results, "demo").replace("hisparse run", "hisparse run", 1)
    text = "\n\n".join([
        "# Results", "Made by `bench/make_tables.py` from `bench/results/`; `make results` measures anew.",
        "## The demo", demo, "prefill: %.0f tokens/s" % results["demo"]["result"]["prefill_tokens_per_second"],
        "## Swap-in on the CPU", "One request, one core, k 2048, 4096 slots, 656-byte rows over 128K tokens; medians a request. "
        "The gather copies the same rows into the same slots with memcpy, one after the other.", swap_in_table(results),
        source(results, "swap_in"), "## Context",
        "Resolve without misses. One group by itself stays in the nearest caches; eight in turn do not fit the L2 (1 MB here), and "
        "from 512K tokens on their look-up maps come from the L3.", sweep_table(results), source(results, "sweep_context")]) + "\n"
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
