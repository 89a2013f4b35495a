#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Policies that the library does not have, tried on traces; lab/policies.md has what came out.

usage: policies.py [--hisparse PATH] [--times LIST] [--budgets-for TRACE] TRACE ...

For every trace a table in Markdown: rows a policy misses with 1, 2 and 4 (or --times) times k slots, and how many fewer that is than LRU,
in percent of LRU's. LRU and Belady are counted by `hisparse sweep`; LRU is counted here as well, and has to be equal. Traces have one
request. Budgets by layer share out as many slots as all layers have together, by each layer's curve of misses: chosen on the first half of
a trace and counted on the second, and with --budgets-for chosen on the whole and counted on another text of the same model; beside the misses
they are in units of k. What looks behind the cut needs traces with next candidates (`hisparse trace record --next`, `synth --next`). Needs numpy.
"""
import argparse
import csv
import io
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RING = 64  # newest rows of a cache, beside its slots
HISTORY = 25  # bits of a victim's key that break ties by recency
LAST = np.iinfo(np.int64).max


# -------------------------------------------------------------------------------------------------------------- traces --

class Trace:
    """tokens[layer][step]: those asked of the slots, each once, in the selector's order; behind[layer][step]: candidates, best first."""

    def __init__(self, path):
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))
        data = np.memmap(path, np.uint8, "r", 8 + size)
        self.path, notes = path, header.get("__metadata__", {})
        load = lambda name: np.frombuffer(data[slice(*header[name]["data_offsets"])], "<i4").reshape(header[name]["shape"])
        selections, lengths = load("selections"), load("lengths")
        self.n_steps, self.n_layers, n_requests, self.k = selections.shape
        self.n_steps = int(notes.get("steps", self.n_steps))
        if n_requests != 1:
            sys.exit("%s has %d requests; the lab reads one" % (path, n_requests))
        self.length = int(lengths.max())
        filled = lengths[0, 0] - 1  # were never in the ring
        self.in_ring = [max(int(n) - RING, int(filled)) for n in lengths[:, 0]]
        self.tokens = self.outside(selections)
        self.behind = self.outside(load("next_tokens")) if "next_tokens" in header else None

    def outside(self, tokens):
        """Without -1, the ring and repetitions."""
        def clean(row, end):
            row = row[(row >= 0) & (row < end)]
            return row[np.sort(np.unique(row, return_index=True)[1])]
        return [[clean(tokens[s, layer, 0], self.in_ring[s]) for s in range(self.n_steps)] for layer in range(self.n_layers)]


# ------------------------------------------------------------------------------------------------------------ policies --
# A policy has a value for every token, and the lowest go first; equal ones oldest first, as LRU has them. `look` is called once a step,
# before victims are chosen: t: step; tokens: selected; behind: candidates (None where the trace has none).

class Lru:
    needs_behind = False

    def __init__(self, length):
        self.value = np.zeros(length)

    def look(self, t, tokens, behind):
        pass


class Behind(Lru):
    """What stands behind the cut goes last, the best of it very last."""
    needs_behind = True

    def __init__(self, length, share=1.0):
        super().__init__(length)
        self.share = share

    def look(self, t, tokens, behind):
        kept = behind[:int(len(behind) * self.share)]
        self.value[:] = 0
        self.value[kept] = 1 + np.arange(len(kept))[::-1]


class Touch(Lru):
    """To stand behind the cut is a use, a little less than to be selected."""
    needs_behind = True

    def look(self, t, tokens, behind):
        self.value[behind] = t + 1
        self.value[tokens] = t + 1.5


class Frequency(Lru):
    """Selections counted, halved every `half` steps; a place behind the cut counts `weight`. Rows that are not resident are remembered."""

    def __init__(self, length, half, weight=0.0):
        super().__init__(length)
        self.decay, self.weight, self.needs_behind = 0.5 ** (1 / half), weight, weight > 0

    def look(self, t, tokens, behind):
        self.value *= self.decay
        self.value[tokens] += 1000
        if self.weight:
            self.value[behind] += 1000 * self.weight


class Place(Frequency):
    """A selection counts 1, a candidate from 1 for the best down to 0 for the last; halved every `half` steps."""

    def __init__(self, length, half):
        super().__init__(length, half, 1.0)

    def look(self, t, tokens, behind):
        self.value *= self.decay
        self.value[tokens] += 1000
        self.value[behind] += 1000 * np.arange(len(behind), 0, -1) / max(1, len(behind))


class ResidentFrequency(Frequency):
    """The same, forgotten when a row goes: what a slot alone can hold."""
    def gone(self, tokens):
        self.value[tokens] = 0


class Last2(Lru):
    """LRU-2 (O'Neil, O'Neil, Weikum 1993): the time of the use before the last."""

    def __init__(self, length):
        super().__init__(length)
        self.last = np.full(length, -1.0)

    def look(self, t, tokens, behind):
        self.value[tokens] = self.last[tokens] + 1
        self.last[tokens] = t


class Pin(Lru):
    """The first 64 tokens and the newest n go last."""

    def __init__(self, length, newest):
        super().__init__(length)
        self.newest, self.value[:64] = newest, 1

    def look(self, t, tokens, behind):
        if len(tokens):
            self.value[64:] = 0
            self.value[max(64, tokens.max() - self.newest):] = 1


POLICIES = {
    "lru": Lru,
    "behind: candidates go last": Behind,
    "behind: the best quarter of them": lambda n: Behind(n, 0.25),
    "touch: a candidate is a use": Touch,
    "frequency, halved in 4 steps": lambda n: Frequency(n, 4),
    "frequency, halved in 16": lambda n: Frequency(n, 16),
    "frequency, halved in 64": lambda n: Frequency(n, 64),
    "frequency, 16, resident rows only": lambda n: ResidentFrequency(n, 16),
    "frequency, 16, candidates count 1/2": lambda n: Frequency(n, 16, 0.5),
    "frequency, 64, candidates count 1/2": lambda n: Frequency(n, 64, 0.5),
    "place, halved in 1": lambda n: Place(n, 1),
    "place, halved in 2": lambda n: Place(n, 2),
    "place, halved in 4": lambda n: Place(n, 4),
    "place, halved in 8": lambda n: Place(n, 8),
    "place, halved in 16": lambda n: Place(n, 16),
    "LRU-2": Last2,
    "pin: first 64 and newest 512": lambda n: Pin(n, 512),
}
PREFETCH = {"prefetch k/32 a step": 32, "prefetch k/8 a step": 8, "prefetch k/2 a step": 2}


# --------------------------------------------------------------------------------------------------------------- cache --

class Cache:
    """One layer of one request."""

    def __init__(self, length, n_slots, policy):
        self.policy, self.tag = policy, np.full(n_slots, -1)
        self.where, self.used = np.full(length, -1), np.arange(n_slots)
        self.clock = n_slots

    def victims(self, n, busy):
        """n slots, least value first."""
        value = np.where(self.tag >= 0, self.policy.value[self.tag], -1)
        key = ((value * 1024).astype(np.int64) << HISTORY) + self.used
        key[busy] = LAST
        chosen = np.argpartition(key, n)[:n] if n < len(key) else np.arange(n)
        return chosen[np.argsort(key[chosen])]

    def put(self, tokens, slots):
        gone = self.tag[slots]
        gone = gone[gone >= 0]
        self.where[gone] = -1
        if hasattr(self.policy, "gone"):
            self.policy.gone(gone)
        self.tag[slots], self.where[tokens] = tokens, slots
        self.use(slots)

    def use(self, slots):
        self.used[slots] = self.clock + np.arange(len(slots))
        self.clock += len(slots)

    def step(self, t, tokens, behind):
        """Rows missed. LRU's order as in the library: fetched, then hit."""
        slots = self.where[tokens]
        hits, missed = slots[slots >= 0], tokens[slots < 0]
        self.policy.look(t, tokens, behind)
        hits = hits[np.argsort(self.used[hits])]
        if len(missed):
            self.put(missed, self.victims(len(missed), hits))
        self.use(hits)
        if self.clock >= 1 << HISTORY:
            self.used, self.clock = np.argsort(np.argsort(self.used)), len(self.used)
        return len(missed)

    def prefetch(self, tokens, behind, most):
        """Candidates that are not resident, into slots neither selected nor of a candidate; they are older than what was selected."""
        busy = self.where[np.concatenate([tokens, behind])]
        busy = busy[busy >= 0]
        wanted = behind[self.where[behind] < 0][:min(most, len(self.tag) - len(busy))]
        if len(wanted) == 0:
            return 0
        slots, selected = self.victims(len(wanted), busy), self.where[tokens]
        self.put(wanted, slots)
        self.use(selected[np.argsort(self.used[selected])])
        return len(wanted)


def count(trace, make, n_slots, prefetch=0):
    """Rows missed, and rows prefetched. n_slots: of every layer, or of each."""
    missed = fetched = 0
    for layer in range(trace.n_layers):
        n = n_slots[layer] if isinstance(n_slots, list) else n_slots
        cache = Cache(trace.length, n, make(trace.length))
        for t, tokens in enumerate(trace.tokens[layer]):
            behind = trace.behind[layer][t] if trace.behind else None
            missed += cache.step(t, tokens, behind)
            if prefetch:
                fetched += cache.prefetch(tokens, behind, prefetch)
    return missed, fetched


# -------------------------------------------------------------------------------------------------------------- budgets --

def sweep(hisparse, path, sizes, policies):
    """{(policy, slots, place of the layer, None for all): misses}"""
    out = subprocess.run([hisparse, "sweep", path, "--csv", "--by-layer", "--policies", policies, "--slots", ",".join(map(str, sizes))],
                         check=True, stdout=subprocess.PIPE).stdout.decode()
    misses, place = {}, 0
    for row in csv.DictReader(io.StringIO(out)):
        place = place + 1 if row["layer"] else -1
        misses[row["policy"], int(row["slots"]), place if row["layer"] else None] = int(row["misses"])
    return misses


def best_budgets(curves, sizes, total):
    """Slots of every layer, of the sizes, together at most `total`, with the fewest misses. curves[layer][size]: misses."""
    best = {0: (0, [])}
    for curve in curves:
        longer = {}
        for used, (misses, chosen) in best.items():
            for size in sizes:
                key = used + size
                if key <= total and (key not in longer or longer[key][0] > misses + curve[size]):
                    longer[key] = (misses + curve[size], chosen + [size])
        best = longer
    return min(best.values())[1]


def curves(hisparse, trace, sizes):
    """LRU's misses of every layer with every size: [layer] {size: misses}."""
    misses = {}
    for i in range(0, len(sizes), 32):
        misses.update(sweep(hisparse, trace.path, sizes[i:i + 32], "lru"))
    return [{size: misses["lru", size, layer] for size in sizes} for layer in range(trace.n_layers)]


def budget_rows(hisparse, chosen_on, counted_on, times):
    """Two rows: LRU and a policy with budgets chosen on one trace, counted on another, against LRU with as many slots for each layer."""
    sizes = [chosen_on.k * i // 4 for i in range(4, 4 * 3 * max(times) + 1)]
    choice, truth = curves(hisparse, chosen_on, sizes), curves(hisparse, counted_on, sizes)
    cells, with_place = [], []
    for n in times:
        chosen = best_budgets(choice, sizes, chosen_on.k * n * chosen_on.n_layers)
        even = sum(curve[chosen_on.k * n] for curve in truth)
        own = sum(curve[size] for curve, size in zip(truth, chosen))
        cells.append("%s: %s" % (fewer(own, even), " ".join("%.4g" % (c / chosen_on.k) for c in chosen)))
        if counted_on.behind:
            with_place.append(fewer(count(counted_on, lambda length: Place(length, 4), chosen)[0], even))
    return cells, with_place


def halves(hisparse, trace, folder):
    """The trace's first and second half."""
    half = trace.n_steps // 2
    for name, first, n in (("first", 0, half), ("second", half, trace.n_steps - half)):
        subprocess.run([hisparse, "trace", "cut", trace.path, os.path.join(folder, name), "--from", str(first), "--steps", str(n)], check=True)
    return Trace(os.path.join(folder, "first")), Trace(os.path.join(folder, "second"))


# ---------------------------------------------------------------------------------------------------------------- table --

def fewer(misses, of):
    return "%+.1f%%" % (100 * (misses - of) / of)


def table(hisparse, path, others, times):
    trace = Trace(path)
    sizes = [trace.k * n for n in times]
    swept = sweep(hisparse, path, sizes, "lru,segmented,belady")
    lru = [swept["lru", size, None] for size in sizes]
    asked = trace.n_steps * trace.n_layers * trace.k
    print("\n%s: %d steps, %d layers, k %d\n" % (os.path.basename(path), trace.n_steps, trace.n_layers, trace.k))
    print("| policy | " + " | ".join("%d k" % n for n in times) + " |\n|---|" + "---|" * len(times))
    row = lambda name, cells: print("| %s | %s |" % (name, " | ".join(cells)), flush=True)
    row("LRU: rows missed, and of all entries", ["%d, %.1f%%" % (n, 100 * n / asked) for n in lru])
    for name in ("belady", "segmented"):
        row(name, [fewer(swept[name, size, None], of) for size, of in zip(sizes, lru)])
    for name, make in POLICIES.items():
        if make(1).needs_behind and not trace.behind:
            continue
        counted = [count(trace, make, size)[0] for size in sizes]
        if name != "lru":
            row(name, [fewer(n, of) for n, of in zip(counted, lru)])
        elif counted != lru:
            sys.exit("LRU: %s misses here, a sweep counts %s" % (counted, lru))
    for name, part in PREFETCH.items() if trace.behind else ():
        counted = [count(trace, Lru, size, trace.k // part) for size in sizes]
        row(name, ["%s, fetched %s" % (fewer(m, of), fewer(m + p, of)) for (m, p), of in zip(counted, lru)])
    budgets(hisparse, trace, others, times, row)


def budgets(hisparse, trace, others, times, row):
    """Chosen on the first half of the steps and counted on the second; chosen on the whole, and counted on every other trace."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = [("second half", *halves(hisparse, trace, folder))] + [(os.path.relpath(o.path), trace, o) for o in others]
        for name, chosen_on, counted_on in pairs:
            cells, with_place = budget_rows(hisparse, chosen_on, counted_on, times)
            row("budgets by layer (%s)" % name, cells)
            if with_place:
                row("the same, and place, halved in 4", with_place)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].replace("usage: ", "", 1))
    parser.add_argument("--hisparse", default=os.path.join(ROOT, "build", "cpu", "bin", "hisparse"))
    parser.add_argument("--times", default="1,2,4", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--budgets-for", action="append", default=[])
    parser.add_argument("traces", nargs="+")
    options = parser.parse_args()
    for path in options.traces:
        table(options.hisparse, path, [Trace(o) for o in options.budgets_for], options.times)


if __name__ == "__main__":
    main()
