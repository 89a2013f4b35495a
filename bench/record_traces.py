#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traces of the three trained models over a long text.

usage: record_traces.py [--hisparse PATH] [--document N] [--steps N] [--models LIST] OUT
       record_traces.py [--hisparse PATH] --cut OUT      write bench/traces/*.safetensors.xz out of what lies in OUT

A model reads all but the last STEPS bytes of a document of bench/heldout.json.xz and goes on with as many of its own, drawn at
temperature 1, in its whole context of 32,768 bytes and a cache of 2 k slots. OUT/NAME.safetensors is the trace; for DSA and Quest with
as many next candidates as are selected. Where a sweep of a trace does not count the misses its run had, layer for layer, this ends with
an error. NSA is not compared: its run asks for its window, too, which is not in the trace, and has a ring as long as that.
"""
import argparse
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile

from measure import ROOT, output

TEXTS = os.path.join(ROOT, "bench", "heldout.json.xz")
SMALL = os.path.join(ROOT, "bench", "traces")
CONTEXT, SEED = 32768, 7
LICENCES = ("PSF-2.0", "BSD-3-Clause", "BSD-3-Clause", "MIT OR Apache-2.0")  # of the documents, by their number
MODELS = {  # entries of a selection; candidates; what the small trace keeps: steps, first layer, layers
    "look-dsa": (512, 512, (200, 2, 2)),
    "look-nsa": (1024, 0, (200, 4, 2)),
    "look-quest": (2048, 2048, (200, 1, 2)),
}


def record(options, name, text, out):
    k, n_next, _ = MODELS[name]
    path = os.path.join(out, name + ".safetensors")
    with tempfile.TemporaryDirectory() as folder:  # where the command, which is in the trace's notes, needs no path of this machine
        os.symlink(os.path.join(ROOT, "models"), os.path.join(folder, "models"))
        with open(os.path.join(folder, "prompt.txt"), "wb") as prompt:
            prompt.write(text[:CONTEXT - options.steps].encode("latin-1"))
        command = [options.hisparse, "trace", "record", name + ".safetensors", "--model", "models/%s.safetensors" % name,
                   "--prompt-file", "prompt.txt", "--max-tokens", str(options.steps), "--context", str(CONTEXT), "--slots", str(2 * k),
                   "--ignore-eos", "--temperature", "1", "--seed", str(SEED), "--next", str(n_next), "--json",
                   "--text", "document %d of bench/heldout.json.xz" % options.document, "--licence", LICENCES[options.document]]
        ran = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=folder).stdout)
        shutil.move(os.path.join(folder, name + ".safetensors"), path)
    return path, ran


def check(options, name, path, ran):
    """The run's misses against those a sweep of its trace counts."""
    swept = json.loads(output(options.hisparse, "sweep", path, "--policies", "lru", "--slots", str(2 * MODELS[name][0]), "--by-layer", "--json"))
    for row in swept["rows"]:
        if row["layer"] is not None and row["misses"] != ran["layers"][row["layer"]]["misses"]:
            sys.exit("%s, layer %d: the run had %d misses, a sweep counts %d" % (
                name, row["layer"], ran["layers"][row["layer"]]["misses"], row["misses"]))
    print("%s: %d misses counted, as the run had" % (path, next(r["misses"] for r in swept["rows"] if r["layer"] is None)))


def cut(options, name, out):
    _, n_next, (steps, first_layer, layers) = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        small = os.path.join(folder, "small.safetensors")
        output(options.hisparse, "trace", "cut", os.path.join(out, name + ".safetensors"), small, "--steps", str(steps),
                "--first-layer", str(first_layer), "--layers", str(layers), "--next", str(min(n_next, 64)))
        with open(small, "rb") as file:
            packed = lzma.compress(file.read(), preset=9 | lzma.PRESET_EXTREME)
    path = os.path.join(SMALL, name + ".safetensors.xz")
    with open(path, "wb") as file:
        file.write(packed)
    print("%s: %d bytes" % (path, len(packed)))


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].replace("usage: ", "", 1))
    parser.add_argument("--hisparse", default=os.path.join(ROOT, "build", "cpu", "bin", "hisparse"))
    parser.add_argument("--document", type=int, default=1, choices=range(len(LICENCES)))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--cut", action="store_true")
    parser.add_argument("out")
    options = parser.parse_args()
    options.hisparse = os.path.abspath(options.hisparse)
    os.makedirs(options.out, exist_ok=True)
    with lzma.open(TEXTS) as file:
        text = json.load(file)["documents"][options.document]
    for name in options.models.split(","):
        if options.cut:
            cut(options, name, options.out)
            continue
        path, ran = record(options, name, text, options.out)
        if name != "look-nsa":
            check(options, name, path, ran)


if __name__ == "__main__":
    main()
