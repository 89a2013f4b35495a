#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well models do with dense attention, with sparse attention, and with the same through the cache.

usage: accuracy.py [--hisparse PATH] [--backend cpu|cuda] [--documents N] [--needles N] [--commit HASH] MODEL ...
       accuracy.py --make-texts DATA     write bench/heldout.json.xz from what train/make_data.py left in DATA; needs numpy

Every MODEL, a .safetensors file, goes through `hisparse score` on the texts of bench/heldout.json.xz: in each of COLUMNS
the last bytes of long documents, for bits per byte, and the lines at the end of needle documents, which ask for lines
further up: found are those whose five digits are all the likeliest. Where a column behind the first is not that one to the
last bit, in all its logits, this ends with an error and writes nothing. Else bench/results gets accuracy-DATE-COMMIT.json,
from which bench/make_tables.py makes docs/accuracy.md.
"""
import argparse
import datetime
import hashlib
import json
import lzma
import math
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from measure import ROOT, machine, output

TEXTS = os.path.join(ROOT, "bench", "heldout.json.xz")
SEED, DOCUMENTS, NEEDLES = 31, 4, 4  # texts of each kind and length in the file
LENGTH, SCORED = 32768, 1024
NEEDLE_LENGTHS, DEPTHS = (4096, 16384, 32768), (0.0, 0.25, 0.5, 0.75, 1.0)
SHORT, PIECE = 512, 128              # bytes before a piece, and of it, of the short context
DIGITS, LINE = 5, 20                 # bytes of a needle's number, and of its line
COLUMNS = {"dense": lambda k: ["--dense"], "sparse": lambda k: ["--all-resident"],
           **{name: (lambda k, n=n: ["--slots", str(n * k)]) for name, n in (("slots_k", 1), ("slots_2k", 2), ("slots_4k", 4))}}
SAME = list(COLUMNS)[1:]             # must be equal to the last bit


# ------------------------------------------------------------------------------------------------------------- texts --

def make_texts(folder):
    sys.path.insert(0, os.path.join(ROOT, "train"))
    import corpus
    import numpy
    rng, held_out = numpy.random.default_rng(SEED), corpus.Corpus(folder, "valid")
    as_text = lambda array: array.tobytes().decode("latin-1")
    documents = [as_text(held_out.window(rng, LENGTH)) for _ in range(DOCUMENTS)]
    needles = [(n, *corpus.test_document(rng, held_out, n, DEPTHS)) for n in NEEDLE_LENGTHS for _ in range(NEEDLES)]
    sources = {name: {key: source[key] for key in ("version", "licence")} for name, source in held_out.sources.items()}
    texts = {"sources": sources, "documents": documents,
             "needles": [{"length": n, "text": as_text(text), "starts": starts.tolist()} for n, text, starts in needles]}
    with open(TEXTS, "wb") as file:
        file.write(lzma.compress(json.dumps(texts).encode(), preset=9 | lzma.PRESET_EXTREME))
    print("%s: %d bytes" % (TEXTS, os.path.getsize(TEXTS)))


def load_texts(documents, needles):
    """The first so many documents, and needle documents of each length."""
    with lzma.open(TEXTS) as file:
        texts = json.load(file)
    by_length = {}
    for needle in texts["needles"]:
        by_length.setdefault(needle["length"], []).append(needle)
    by_length = {length: of_length[:needles] for length, of_length in by_length.items()}
    return texts["documents"][:documents], by_length, texts["sources"]


# ----------------------------------------------------------------------------------------------------------- scoring --

class Scorer:
    """`hisparse score` of one model."""

    def __init__(self, options, model):
        self.command, self.model = [options.hisparse, "score", "--model", model, "--backend", options.backend, "--json"], model
        self.shape = shape_of(model)
        self.top_k = self.shape.get("top_k") or self.shape["n_blocks"] * self.shape["block_tokens"]
        self.compared = 0

    def score(self, text, scored, extra):
        with tempfile.NamedTemporaryFile() as file:
            file.write(text.encode("latin-1"))
            file.flush()
            done = subprocess.run([*self.command, "--text", file.name, "--prompt-tokens", str(len(text) - scored), *extra],
                                  stdout=subprocess.PIPE)
        if done.returncode != 0:
            sys.exit("accuracy.py: %s: hisparse score %s ended with %d" % (self.model, " ".join(extra), done.returncode))
        return json.loads(done.stdout)

    def columns(self, text, scored):
        """What `hisparse score` says in every column; those of SAME have the same logits, or this ends."""
        results = {name: self.score(text, scored, options(self.top_k)) for name, options in COLUMNS.items()}
        digests = {name: results[name]["digest"] for name in SAME}
        if len(set(digests.values())) != 1:
            sys.exit("accuracy.py: %s: the logits DIFFER between columns: %s" % (self.model, digests))
        self.compared += scored
        return results

    def short_context(self, text):
        """Bits per byte of the same last bytes, piece by piece, with only SHORT bytes and the piece's own before each."""
        first = len(text) - SCORED
        bits = [self.score(text[at - SHORT : at + PIECE], PIECE, ["--dense"])["bits_per_byte"]
                for at in range(first, len(text), PIECE)]
        return statistics.fmean(bits)


def shape_of(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        return json.loads(json.loads(file.read(size))["__metadata__"]["hisparse"])


def mean_and_error(values):
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "error": error, "documents": len(values)}


def count_found(needle, each):
    """[found or not] by depth: starts are where the five digits of each begin."""
    right = [token == likeliest for token, likeliest in zip(each["token"], each["argmax"])]
    first = needle["length"] - len(right)
    return [all(right[start - first : start - first + DIGITS]) for start in needle["starts"]]


class Totals:
    """Hits, misses and steps of each column, over all texts."""

    def __init__(self):
        self.of = {name: {"hits": 0, "misses": 0} for name in COLUMNS if name.startswith("slots")}

    def add(self, results):
        for name, sums in self.of.items():
            for key in sums:
                sums[key] += results[name][key]


def measure_bits(scorer, documents, totals):
    found = {name: [] for name in ("short_context", *COLUMNS)}
    for number, text in enumerate(documents, 1):
        results = scorer.columns(text, SCORED)
        for name in COLUMNS:
            found[name].append(results[name]["bits_per_byte"])
        found["short_context"].append(scorer.short_context(text))
        totals.add(results)
        print("%s: document %d of %d" % (scorer.model, number, len(documents)), file=sys.stderr, flush=True)
    return {name: mean_and_error(values) for name, values in found.items()}


def measure_needles(scorer, by_length, totals):
    """{column: {length: {depth: [found, asked]}}}"""
    counts = {name: {str(n): {"%.0f%%" % (100 * d): [0, 0] for d in DEPTHS} for n in by_length} for name in COLUMNS}
    for length, needles in by_length.items():
        for needle in needles:
            results = scorer.columns(needle["text"], len(DEPTHS) * LINE)
            for name in COLUMNS:
                for cell, found in zip(counts[name][str(length)].values(), count_found(needle, results[name]["each"])):
                    cell[0] += found
                    cell[1] += 1
            totals.add(results)
        print("%s: needles in %d bytes" % (scorer.model, length), file=sys.stderr, flush=True)
    return counts


def measure(options, model, texts):
    begin, scorer, totals = time.time(), Scorer(options, model), Totals()
    bits, needles = measure_bits(scorer, texts[0], totals), measure_needles(scorer, texts[1], totals)
    with open(model, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {"architecture": scorer.shape["architecture"], "top_k": scorer.top_k, "sha256": digest, "bits_per_byte": bits,
            "needles": needles, "rows": totals.of, "steps_compared": scorer.compared, "seconds": round(time.time() - begin)}


# ------------------------------------------------------------------------------------------------------------ results --

def where(backend):
    if backend != "cuda":
        return machine()
    gpu = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()[0]
    return "%s; %s" % (gpu.replace(", ", ", driver "), machine())


def commit_of_sources():
    if output("git", "-C", ROOT, "status", "--porcelain", "--", "src", "ops", "engine", "tools", "include").strip():
        sys.exit("accuracy.py: sources differ from the commit; commit first, so that numbers have a commit")
    return output("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="*", metavar="MODEL")
    p.add_argument("--make-texts", metavar="DATA")
    p.add_argument("--hisparse", default=os.path.join(ROOT, "build", "cpu", "bin", "hisparse"), metavar="PATH")
    p.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--documents", type=int, default=DOCUMENTS, metavar="N")
    p.add_argument("--needles", type=int, default=NEEDLES, metavar="N", help="documents of each length")
    p.add_argument("--commit", metavar="HASH", help="of the sources, where this is not a clone")
    options = p.parse_args()
    if bool(options.models) == bool(options.make_texts):
        p.error("either models or --make-texts")
    for name, most in (("documents", DOCUMENTS), ("needles", NEEDLES)):
        if not 1 <= getattr(options, name) <= most:
            p.error("--%s may be 1..%d" % (name, most))
    return options


def measure_all(options, commit):
    texts = load_texts(options.documents, options.needles)
    command = "bench/accuracy.py --backend %s --documents %d --needles %d %s" % (
        options.backend, options.documents, options.needles, " ".join(os.path.relpath(m, ROOT) for m in options.models))
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"command": command, "machine": where(options.backend), "commit": commit, "date": now.date().isoformat(),
            "time": now.isoformat(timespec="seconds"), "backend": options.backend, "sources": texts[2],
            "length": len(texts[0][0]), "scored": SCORED, "short_context_bytes": [SHORT, SHORT + PIECE - 1],
            "models": {os.path.basename(m).removesuffix(".safetensors"): measure(options, m, texts) for m in options.models}}


def main():
    options = parse()
    if options.make_texts:
        return make_texts(options.make_texts)
    results = measure_all(options, options.commit or commit_of_sources())
    path = os.path.join(ROOT, "bench", "results", "accuracy-%s-%s.json" % (results["date"], results["commit"]))
    with open(path, "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    print(path)


if __name__ == "__main__":
    main()
