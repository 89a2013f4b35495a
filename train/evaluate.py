#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure an exported model on held-out text: evaluate.py NAME DATA OUT SECONDS [--tiny]. Writes OUT/NAME.eval.json.

Sparse means: every token's attention sees what the selector chose for it, as if each token had been decoded, prompt
included; selection is exact (float32 scores, ties to the lower token). Dense means: all tokens before it; for NSA in its
selected branch. Weights are the file's. On a GPU attention itself takes bf16 queries; everything else is float32.
Every part stops when its share of the time is over and says how many documents it saw."""
import json
import math
import pathlib
import sys
import time

import numpy
import torch
import torch.nn.functional as F

import export
from corpus import DIGITS, Corpus, test_document
from layers import prepare_gpu
from model import Run, bits

SEED = 20
FULL = {"length": 32768, "scored": 8192, "short": 512, "short_scored": 128, "probes": 128, "documents": 16,
        "needle_lengths": [2048, 8192, 16384, 32768], "depths": [0.0, 0.25, 0.5, 0.75, 1.0], "rounds": 16, "tail": 512}
TINY = {"length": 512, "scored": 128, "short": 64, "short_scored": 32, "probes": 16, "documents": 2,
        "needle_lengths": [320, 512], "depths": [0.0, 1.0], "rounds": 2, "tail": 160}
MODES = ("dense", "sparse")


class Clock:
    def __init__(self, seconds):
        self.begin, self.seconds = time.perf_counter(), seconds

    def left(self, share):
        return time.perf_counter() - self.begin < share * self.seconds


def to_tokens(array, device):
    return torch.from_numpy(array.astype(numpy.int64)).to(device)


def mean_and_error(values):
    n = len(values)
    return {"mean": float(numpy.mean(values)), "error": float(numpy.std(values, ddof=1) / math.sqrt(n)) if n > 1 else None, "documents": n}


def losses_of(model, tokens, mode, scored):
    """Bits of each of the last `scored` bytes of tokens [n][length + 1]."""
    logits = model(tokens[:, :-1], Run(mode), last=scored)
    return bits(F.cross_entropy(logits.transpose(1, 2), tokens[:, -scored:], reduction="none"))


def bits_per_byte(model, corpus, plan, clock, share, device):
    """The same bytes, the last of long documents, with all before them and with only a little before them."""
    rng, found = numpy.random.default_rng(SEED), {"dense": [], "sparse": [], "short_context": []}
    length, scored, context, step = (plan[key] for key in ("length", "scored", "short", "short_scored"))
    for _ in range(plan["documents"]):
        if found["dense"] and not clock.left(share):
            break
        document = corpus.window(rng, length + 1)
        for mode in MODES:
            found[mode].append(losses_of(model, to_tokens(document[None], device), mode, scored).mean().item())
        starts = range(length + 1 - scored - context, length + 1 - context, step)
        pieces = numpy.stack([document[start : start + context + step] for start in starts])
        found["short_context"].append(losses_of(model, to_tokens(pieces, device), "dense", step).mean().item())
    gain = numpy.subtract(found["short_context"], found["dense"])
    loss = numpy.subtract(found["sparse"], found["dense"])
    return {key: mean_and_error(values) for key, values in found.items()} | {
        "short_minus_dense": mean_and_error(gain), "sparse_minus_dense": mean_and_error(loss),
        "length": length, "scored": scored, "short_context_bytes": [context, context + step - 1]}


def needles(model, corpus, plan, clock, share, device):
    """{mode: {length: {depth: [right, asked]}}}; right: all digits, each from the true ones before it, as greedy
    decoding would give them."""
    depths, lengths = plan["depths"], plan["needle_lengths"]
    counts = {mode: {str(n): {f"{depth:.0%}": [0, 0] for depth in depths} for n in lengths} for mode in MODES}
    rng = numpy.random.default_rng(SEED + 1)
    for n_round in range(plan["rounds"]):
        for length in reversed(lengths):
            if n_round and not clock.left(share):
                return counts
            # One more byte than the length: what goes in is then a multiple of 16, as the masks of attention like it.
            made = [test_document(rng, corpus, length + 1, depths) for _ in range(max(1, min(8, lengths[-1] // length)))]
            tokens, tail = to_tokens(numpy.stack([text for text, _ in made]), device), plan["tail"]
            for mode in MODES:
                right = model(tokens[:, :-1], Run(mode), last=tail).argmax(-1) == tokens[:, -tail:]
                for i, (_, starts) in enumerate(made):
                    for depth, start in zip(depths, starts - (length + 1 - tail)):
                        count = counts[mode][str(length)][f"{depth:.0%}"]
                        count[0] += int(right[i, start : start + DIGITS].all())
                        count[1] += 1
    return counts


def recall(model, corpus, plan, clock, share, device):
    """Per layer: share of the selected tokens that are among the as many tokens with the most attention; attention's mass
    on the selected, and on those with the most. Queries in the last part of long documents, dense before them."""
    rng, layers, documents = numpy.random.default_rng(SEED + 2), {}, 0
    formats = ["e4m3", "bf16"] if model.shape["architecture"] == "mla_dsa" else [None]
    kept = model.shape.get("index_dtype")
    while documents < plan["documents"] // 2 and (documents == 0 or clock.left(share)):
        tokens = to_tokens(corpus.window(rng, plan["length"])[None], device)
        first = plan["length"] - plan["scored"]
        positions = to_tokens(numpy.sort(first + rng.integers(plan["scored"], size=(1, plan["probes"]))), device)
        for of_format in formats:
            if of_format:
                model.shape["index_dtype"] = of_format  # the layers share this dictionary
            run = Run("dense", positions, "probe")
            model(tokens, run, last=1)
            for probe in run.probes:
                sums = layers.setdefault((of_format or "keys", probe.pop("layer")), {})
                for key, value in probe.items():
                    sums[key] = sums.get(key, 0.0) + value
        documents += 1
    if kept:
        model.shape["index_dtype"] = kept
    return {"documents": documents, "queries": documents * plan["probes"],
            "layers": [{"format": of_format, "layer": layer} | {key: value / documents for key, value in sums.items()}
                       for (of_format, layer), sums in layers.items()]}


def main():
    name, data, out, seconds = sys.argv[1:5]
    clock, out, plan = Clock(float(seconds)), pathlib.Path(out), TINY if "--tiny" in sys.argv[5:] else FULL
    prepare_gpu()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, corpus = export.load(out / f"{name}.safetensors").to(device), Corpus(data, "valid")
    results = {"model": name, "plan": plan}
    parts = (("bits_per_byte", bits_per_byte, 0.4), ("recall", recall, 0.55), ("needles", needles, 0.97))
    with torch.no_grad():
        for part, measure, share in parts:
            try:
                results[part] = measure(model, corpus, plan, clock, share, device)
            except torch.OutOfMemoryError as error:
                results[part] = {"failed": str(error)[:200]}
                torch.cuda.empty_cache()
            results["seconds"] = round(time.perf_counter() - clock.begin, 1)
            (out / f"{name}.eval.json").write_text(json.dumps(results))
            print(name, part, json.dumps(results[part]), flush=True)


if __name__ == "__main__":
    main()
