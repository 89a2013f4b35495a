#!/usr/bin/env python3
"""Make docs/results.md and the tables of docs/accuracy.md and README.md from the newest files of bench/results. No argument."""
import glob
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- made by bench/make_tables.py -->", "<!-- end -->"


def newest(kind, part=None):
    """The results of the latest time in the files themselves, of those that have the part; None when there are none."""
    results = [json.load(open(path)) for path in glob.glob(os.path.join(ROOT, "bench", "results", kind + "-*.json"))]
    results = [r for r in results if part is None or part in r]
    return max(results, key=lambda r: r.get("time", r["date"])) if results else None


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
    return table(["misses %", "rows", "resolve us", "swap-in us", "fetch us", "memcpy gather us", "fetch rate, % of the gather's"], rows)


def sweep_table(results):
    rows = [[str(int(r["groups_in_turn"])), str(int(r["context_tokens"])), number(r["resolve_us"], 2),
             number(r["deviation_percent"], 1)] for r in results["sweep_context"]["result"]["rows"]]
    return table(["groups in turn", "context", "resolve us", "deviation %"], rows)


def by_cell(rows, misses="miss_percent"):
    return {(r["batch"], r[misses]): r for r in rows}


def ratio(ours, theirs):
    return "-" if theirs is None else "%.2f" % (ours / theirs)


PEERS = [("sglang", "misses_percent", "SGLang us"), ("prototype", "miss_percent", "prototype us"),
         ("prototype_same_rows", "miss_percent", "prototype, same rows, us")]


def peer_table(results):
    """Ours beside SGLang's kernel and the prototype, back to back, of one run; those that were run."""
    peers = [(by_cell(results[name]["rows"], misses), title) for name, misses, title in PEERS if name in results]
    rows = []
    for r in results["floor"]["rows"]:
        cell, ours = (r["batch"], r["miss_percent"]), r["swap_in_us"]
        others = [cells[cell]["swap_in_us"] if cell in cells else None for cells, _ in peers]
        if any(others) or not peers:
            rows.append([str(cell[0]), number(cell[1], 1), number(ours, 2), number(r["swap_in_p99_us"], 2)]
                        + [text for other in others for text in (number(other, 1), ratio(ours, other))])
    return table(["batch", "misses %", "swap-in us", "p99 us"] + [text for _, title in peers for text in (title, "ratio")], rows)


def peer_text(results):
    text = ""
    if "sglang" in results:
        text += " SGLang's kernel: %s, `%s`; misses are spread over its selections, in ours most of them (94%% at 1%%, 68%% at 25%%) stand at the front." % (
            results["sglang"]["rows"][0]["peer"], results["sglang"]["command"])
    if "prototype" in results:
        text += (" The prototype is the floor program of the design notes with its best cluster size in every cell. Its trace can replace a new token again in the "
                 "same step, so it fetches fewer rows than it says (448 of 512 at 25%); in the columns of the same rows that is mended.")
    return text


def gather_rows(rows, first):
    """first: the columns that tell the cases apart."""
    return [[number(r[name], digits) for name, digits in first]
            + [number(r["resolve_us"], 2), number(r["swap_in_us"], 1), number(r["gather_us"], 1), number(r["of_gather_percent"], 0),
               number(r["swept_resolve_us"], 2), number(r["swept_swap_in_us"], 1), number(r["swept_gather_us"], 1),
               number(r["swept_of_gather_percent"], 0)] for r in rows]


GATHER_HEAD = ["resolve us", "swap-in us", "gather us", "fetch rate, % of the gather's",
               "swept: resolve us", "swap-in us", "gather us", "fetch rate, % of the gather's"]


def gather_table(part, names, digits, head):
    rows = [r for p in part for r in p["rows"]] if isinstance(part, list) else part["rows"]
    return table(head + GATHER_HEAD, gather_rows(rows, list(zip(names, digits))))


def of_whole(rows):
    """Between which percentages the gather's time lies of a whole swap-in's, back to back."""
    percents = [r["of_swap_in_percent"] for r in rows if r["of_swap_in_percent"] is not None]
    return "%.0f%% to %.0f%%" % (min(percents), max(percents))


def larger_table(part):
    """Cases with the layers of a whole model; of a cold one, who misses is said in place of a rate."""
    rows = [[str(r["batch"]), "one request all" if r["cold"] else number(r["miss_percent"], 1), str(r["layers"]), number(r["pool_gb"], 1)]
            + gather_rows([r], [])[0] for r in part["rows"]]
    return table(["batch", "misses %", "layers", "pool GB"] + GATHER_HEAD, rows)


def command_of(part):
    return "`%s`" % re.sub(r" --output \S+", "", part["command"])


def calibrate_section(results):
    m = results["measured"]
    rows = [["empty launch in a graph", "%.2f us" % m["launch_us"]], ["GPU to GPU, read + write", "%.0f GB/s" % m["device_copy_gb_s"]],
            ["host to GPU, copy engine / kernel", "%.1f / %.1f GB/s" % (m["engine_to_device_gb_s"], m["kernel_to_device_gb_s"])],
            ["GPU to host, copy engine / kernel", "%.1f / %.1f GB/s" % (m["engine_to_host_gb_s"], m["kernel_to_host_gb_s"])],
            ["translation granule", "%.0f KiB" % m["granule_kib"]],
            ["reach, warm / L2 swept", "%.0f / %.0f MiB" % (m["reach_mib"], m["reach_swept_mib"])],
            ["walks, as it is / L2 swept", "%.1f / %.1f a us" % (m["walks_per_us"], m["walks_swept_per_us"])]]
    return "\n\n".join(["## The machine, by `hisparse calibrate`", table(["", ""], rows), "%s, driver %s, %s; commit %s, %s. %s" % (
        results["machine"]["gpu"], results["machine"]["driver"], results["machine"]["pcie"], results["commit"], results["date"],
        command_of(results))])


PATH_COLUMNS = [("batch", "batch", 0), ("group", "group_layers", 0), ("misses %", "miss_percent", 1), ("attention us", "attention_us", 0),
                ("resident us", "resident_us", 1), ("mechanism us", "mechanism_us", 2), ("exposed us, waiting", "exposed_waiting_us", 2),
                ("prefetched", "exposed_prefetched_us", 2), ("floor us", "floor_us", 2), ("hidden %", "hidden_percent", 0),
                ("of followers %", "followers_hidden_percent", 0), ("% of single layers", "of_single_percent", 0),
                ("waiting GB/s", "rate_gb_s", 1), ("% of the link", "of_link_percent", 0), ("exposed ms a token, waiting", "model_exposed_waiting_ms", 2),
                ("prefetched", "model_exposed_prefetched_ms", 2)]


def path_table(part):
    return table([head for head, _, _ in PATH_COLUMNS], [[number(r[name], digits) for _, name, digits in PATH_COLUMNS] for r in part["rows"]])


def path_section(results):
    parts = []
    for part in results["path"]:
        parts += ["### Rows of %d bytes" % part["rows"][0]["row_bytes"], path_table(part), command_of(part) + ". " + part["note"] + "."]
    return "\n\n".join(["## The decode path on the GPU", "Layers of append, swap-in, MLA attention and a stand-in for the rest, which fills every multiprocessor; "
                        "microseconds a layer, medians of tokens in CUDA graphs.", *parts,
                        "%s; commit %s, %s." % (results["machine"], results["commit"], results["date"])])


def cuda_section(results):
    where = "%s; commit %s, %s." % (results["machine"], results["commit"], results["date"])
    case = (["batch", "misses %"], ["batch", "miss_percent"], [0, 1])
    return "\n\n".join([
        "## Swap-in on the GPU", "k 2048, 4096 slots, 656-byte rows over 128K tokens a request (32K at batch 128), microseconds for the whole batch, medians of "
        "replays of captured graphs, launch after launch; p99 is of means over 12 launches. 4 layers: at batch 1 a pool of 0.3 GB, whose translations "
        "the GPU remembers (larger ones below). Every part below checks the bytes it fetched.",
        peer_table(results),
        "%s %s.%s" % (where, command_of(results["floor"]), peer_text(results)),
        "### Against a plain gather of the same rows into the same slots", "The gather has its best of five block counts. fetch = swap-in less resolve: "
        "the gather has a launch of its own in its time and the fetch has none, so at small batches the percentage flatters. Of a whole swap-in the gather takes "
        + of_whole(results["floor"]["rows"]) + ". Swept: the L2 is filled with other memory before each launch, as between two layers of a model.",
        gather_table(results["floor"], case[1], case[2], case[0]),
        "### In a pool larger than the GPU's reach", "As many layers as make 16 GiB.", larger_table(results["short"]), command_of(results["short"]) + ", same machine.",
        "### Row sizes (batch 32, 10% misses)", gather_table(results["rows"], ["row_bytes"], [0], ["row bytes"]),
        "### Slots (5% misses)", gather_table(results["slots"], ["batch", "slots"], [0, 0], ["batch", "slots"]),
        "### Context (batch 1, 2048 slots)",
        gather_table(results["contexts"], ["context_tokens", "miss_percent"], [0, 1], ["context", "misses %"]),
        "%s %s; %s; `hisparse bench swap-in --backend cuda --batch 1 --misses 0,5 --slots 2048 --layers 4 --context N`." % (
            where, command_of(results["rows"]), command_of(results["slots"]))])


def readme_cuda(results):
    """A few cells for the first screen."""
    sglang = by_cell(results["sglang"]["rows"], "misses_percent")
    shown = [(1, 0.0), (1, 5.0), (8, 5.0), (8, 13.4), (32, 5.0), (32, 13.4), (128, 5.0), (128, 13.4)]
    ours = by_cell(results["floor"]["rows"])
    rows = [[str(b), number(m, 1), "%.1f us" % ours[b, m]["swap_in_us"], "%.1f us" % sglang[b, m]["swap_in_us"],
             "%.1fx" % (sglang[b, m]["swap_in_us"] / ours[b, m]["swap_in_us"]), number(ours[b, m]["swept_of_gather_percent"], 0)]
            for b, m in shown]
    return table(["one layer on an H200: batch", "misses %", "swap-in", "SGLang's kernel", "faster", "fetch rate, % of a plain gather's, L2 swept"], rows) + \
        "\n\n%s; commit %s, %s. %s, `%s`. 4 layers, so that a pool is 0.3 (batch 1) to 11 GB; in pools of 17 to 19 GB (ours alone): %s." % (
            results["machine"], results["commit"], results["date"], command_of(results["floor"]), results["sglang"]["command"],
            ", ".join("%.1f us at %d x %g%%" % (r["swap_in_us"], r["batch"], r["miss_percent"])
                      for r in results["short"]["rows"] if r["rows"] and not r["cold"]))


ACCURACY = ["dense", "sparse", "slots_k", "slots_2k", "slots_4k"]


def with_error(entry):
    return "%.4f" % entry["mean"] + (" ± %.4f" % entry["error"] if entry["error"] is not None else "")


def accuracy_rows(results, model):
    """One row a measure, one column a way of attending."""
    bits, rows = model["bits_per_byte"], model["rows"]
    low, high = results["short_context_bytes"]
    lines = [["bits per byte"] + [with_error(bits[name]) for name in ["short_context", *ACCURACY]]]
    for length, depths in model["needles"]["dense"].items():
        sums = [[sum(cell[i] for cell in model["needles"][name][length].values()) for i in (0, 1)] for name in ACCURACY]
        lines.append(["needles in %s bytes" % length, "-"] + ["%d of %d" % tuple(s) for s in sums])
        one_each = all(cell[1] == 1 for cell in depths.values())
        for depth in () if one_each else depths:
            lines.append(["at %s" % depth, "-"] + ["%d of %d" % tuple(model["needles"][name][length][depth]) for name in ACCURACY])
    shares = ["%.1f%%" % (100 * r["hits"] / (r["hits"] + r["misses"])) for r in (rows[name] for name in ACCURACY[2:])]
    lines.append(["rows found in a slot or the ring", "-", "-", "-"] + shares)
    k = model["top_k"]
    head = ["", "dense, last %d to %d bytes" % (low, high), "dense", "sparse, all resident"] + ["%d slots" % (n * k) for n in (1, 2, 4)]
    return head, lines


def accuracy_model(results, name, model):
    head, rows = accuracy_rows(results, model)
    return "\n\n".join([
        "## %s" % name, table(head, rows),
        "`%s`, top-k %d, sha256 `%s`. %d steps: all logits of the last four columns are the same, bit for bit." % (
            model["architecture"], model["top_k"], model["sha256"], model["steps_compared"])])


def accuracy_section(results):
    if results is None:
        return "Not measured yet."
    sources = ", ".join("%s %s (%s)" % (name, s["version"], s["licence"]) for name, s in results["sources"].items())
    first = next(iter(results["models"].values()))["bits_per_byte"]["dense"]
    about = "Bits per byte of the last %d of %d bytes; documents: %d (mean ± standard error); %s; commit %s, %s. `%s`. Texts, all held out from training: %s." % (
        results["scored"], results["length"], first["documents"], results["machine"], results["commit"], results["date"], results["command"], sources)
    return "\n\n".join([accuracy_model(results, name, model) for name, model in results["models"].items()] + [about])


def between_marks(path, made):
    """The page with what is between its marks made anew."""
    with open(path, encoding="utf-8") as file:
        return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: "%s\n%s\n%s" % (BEGIN, made, END), file.read(), flags=re.S)


def pages():
    """Text by path: of docs/results.md, and of README.md and docs/accuracy.md with their tables made anew."""
    results = newest("cpu")
    if not results:
        sys.exit("make_tables.py: bench/results has no measurement; run `make results`")
    demo = demo_table(results) + "\n\n" + source(results, "demo")
    text = "\n\n".join([
        "# Results", "Made by `bench/make_tables.py` from `bench/results/`; `make results` measures the parts on the CPU anew.",
        "## The demo", demo, "prefill: %.0f tokens/s" % results["demo"]["result"]["prefill_tokens_per_second"],
        "## Swap-in on the CPU", "One request, one core, k 2048, 4096 slots, 656-byte rows over 128K tokens; medians a request. "
        "The gather copies the same rows into the same slots with memcpy, one after the other.", swap_in_table(results),
        source(results, "swap_in"), "## Context",
        "Resolve without misses. One group by itself stays in the nearest caches; the lines that eight in turn touch at a million "
        "tokens do not fit the L2 (1 MB here).", sweep_table(results), source(results, "sweep_context")])
    cuda, machine = newest("h200-swap_in", "floor"), newest("h200-calibrate")
    path = newest("h200-decode_path")
    sections = [cuda_section(cuda)] + ([path_section(path)] if path else []) + [calibrate_section(machine)]
    text += "\n\n" + "\n\n".join(sections) + "\n"
    readme, accuracy = os.path.join(ROOT, "README.md"), os.path.join(ROOT, "docs", "accuracy.md")
    return {os.path.join(ROOT, "docs", "results.md"): text,
            readme: between_marks(readme, demo + "\n\n" + readme_cuda(newest("h200-swap_in", "sglang"))),
            accuracy: between_marks(accuracy, accuracy_section(newest("accuracy")))}


def main():
    for path, text in pages().items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
