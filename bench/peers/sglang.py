#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time SGLang's HiSparse swap-in kernel, called through its own Python function, on traces built as
`hisparse bench swap-in --backend cuda` builds them. Needs a GPU, nvcc, ninja, torch and the public packages sglang (0.5.17 or later) and
apache-tvm-ffi.

usage: bench/peers/sglang.py OUT.json [--block-size 960]

One JSON object a line and cell. How the function was read, and what it is fed here:
- One call is one layer. A request is a row, given by req_pool_indices, of every table.
- device_buffer_tokens and device_buffer_locs (int32, equal row strides) have hot_buffer_size columns, one a slot, and
  then a page whose first column is the slot of the newest token. tokens says which token a slot holds, locs which row
  of the device pool a slot is. Rows of the pool's first page belong to nobody, as in SGLang.
- lru_slots (int16) lists the slots, least recent first. Victims are taken from its front; at the end of a call come the
  fetched rows and then, last, the rows that were hit: the order that libhisparse keeps.
- host_cache_locs (int64) gives the row of the host pool of each token; host and device pools are plain arrays of rows,
  item_size_bytes apart, one for each layer. The host pool is pinned memory that the kernel reads in place.
- seq_lens counts the newest token, seq_len - 1, whose row is taken from its own slot whenever it is selected: no hit,
  no miss, never a victim. Requests here have one token more than `context`, and that one is never selected, so every
  selected row goes through the LRU and each call has exactly the misses asked for. They are counted, not assumed.
- A request of at most hot_buffer_size tokens takes a path without misses; none here is so short.
- The selection must hold top_k different tokens: -1 and duplicates are not defended against. None here has either.
- 960 threads a block is what SGLang itself launches (swap_in_block_size); the Python function's own default is 256.
"""
import argparse
import contextlib
import importlib.metadata
import json
import mmap
import os
import statistics
import sys

# This file is called like the package that it imports, and Python looks beside the script first.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]

import torch
from sglang.kernels.ops.kvcache.hisparse import load_cache_to_device_buffer_mla

K, SLOTS, ROW, LAYERS, STEPS, PAGE, REPEATS = 2048, 4096, 656, 4, 12, 64, 3
WORDS = ROW // 8
SHAPES = [(1, 131072), (8, 131072), (32, 131072), (128, 32768)]
PERCENTS = [0.0, 1.0, 5.0, 10.0, 13.4, 25.0]
GPU = "cuda"


def row_words(request, layer, token):
    """The row of each token, [..., WORDS]: every word tells request, layer, token and place."""
    row = (request * LAYERS + layer) * (1 << 18) + token.long()
    return (row.unsqueeze(-1) * 128 + torch.arange(WORDS, device=GPU)) * 0x5851F42D4C957F2D


def pinned(n_words):
    """Pinned host memory in large pages, as `hisparse bench swap-in --backend cuda` makes it."""
    memory = mmap.mmap(-1, n_words * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    words = torch.frombuffer(memory, dtype=torch.int64)
    words.zero_()
    mapped = 2
    status = int(torch.cuda.cudart().cudaHostRegister(words.data_ptr(), n_words * 8, mapped))
    if status != 0:
        raise RuntimeError("cudaHostRegister: error %d" % status)
    return words


def make_traces(batch, context, m):
    """hot [LAYERS, batch, SLOTS], oldest first, and selection [STEPS, LAYERS, batch, K]: every step replaces m places,
    drawn at random, with tokens that never were resident, and shuffles."""
    random = torch.Generator(GPU)
    random.manual_seed(3)
    pairs = LAYERS * batch
    permutation = lambda n: torch.rand(pairs, n, device=GPU, generator=random).argsort(dim=1)
    order = permutation(context)[:, : SLOTS + m * STEPS].int()
    hot = order[:, :SLOTS].flip(1).reshape(LAYERS, batch, SLOTS)
    now = order[:, :K].clone()
    selection = torch.empty(STEPS, LAYERS, batch, K, dtype=torch.int32, device=GPU)
    for step in range(STEPS):
        fresh = order[:, SLOTS + step * m : SLOTS + (step + 1) * m]
        now.scatter_(1, permutation(K)[:, :m], fresh)
        now = now.gather(1, permutation(K))
        selection[step] = now.reshape(LAYERS, batch, K)
    return hot, selection


class Subject:
    """SGLang's tables and pools for one shape."""

    def __init__(self, host_words, batch, context, block_size):
        self.batch, self.context, self.block_size = batch, context, block_size
        self.requests = torch.arange(batch, device=GPU)
        self.host = host_words[: LAYERS * batch * context * WORDS].view(LAYERS, batch * context, WORDS)
        tokens = torch.arange(context, device=GPU)
        for layer in range(LAYERS):
            for request in range(batch):
                self.host[layer, request * context : (request + 1) * context].copy_(row_words(request, layer, tokens))
        self.host_locs = torch.full((batch, context + PAGE), -1, dtype=torch.int64, device=GPU)
        self.host_locs[:, :context] = self.requests[:, None] * context + tokens
        n_rows = PAGE + batch * (SLOTS + PAGE)
        locs = torch.arange(PAGE, n_rows, dtype=torch.int32, device=GPU).view(batch, SLOTS + PAGE)
        self.locs = locs.repeat(LAYERS, 1, 1)
        self.rows = torch.zeros(LAYERS, n_rows, WORDS, dtype=torch.int64, device=GPU)
        self.tokens = torch.full((LAYERS, batch, SLOTS + PAGE), -1, dtype=torch.int32, device=GPU)
        self.lru = torch.empty(LAYERS, batch, SLOTS, dtype=torch.int16, device=GPU)
        self.out = torch.empty(LAYERS, batch, K, dtype=torch.int32, device=GPU)
        self.seq_lens = torch.full((batch,), context + 1, dtype=torch.int64, device=GPU)
        self.n_requests = torch.full((1,), batch, dtype=torch.int32, device=GPU)

    def warm(self, hot):
        """Slot i holds the i-th oldest of `hot`; reset() comes back to this."""
        request, layer = self.requests.view(1, -1, 1), torch.arange(LAYERS, device=GPU).view(-1, 1, 1)
        slots = self.rows[:, PAGE:].view(LAYERS, self.batch, SLOTS + PAGE, WORDS)
        slots[:, :, :SLOTS] = row_words(request, layer, hot)
        self.tokens[:, :, :SLOTS] = hot
        self.lru[:] = torch.arange(SLOTS, dtype=torch.int16, device=GPU)
        self.out.fill_(-1)
        self.saved = [(t, t.clone()) for t in (self.rows, self.tokens, self.lru, self.out)]

    def reset(self):
        for state, saved in self.saved:
            state.copy_(saved)

    def swap_in(self, layer, selection):
        load_cache_to_device_buffer_mla(
            top_k_tokens=selection,
            device_buffer_tokens=self.tokens[layer],
            host_cache_locs=self.host_locs,
            device_buffer_locs=self.locs[layer],
            host_cache=self.host[layer].view(torch.uint8),
            device_buffer=self.rows[layer].view(torch.uint8),
            top_k_device_locs=self.out[layer],
            req_pool_indices=self.requests,
            seq_lens=self.seq_lens,
            lru_slots=self.lru[layer],
            item_size_bytes=ROW,
            num_top_k=K,
            hot_buffer_size=SLOTS,
            page_size=1,
            block_size=self.block_size,
            num_real_reqs=self.n_requests,
        )

    def wrong_rows(self, selection):
        """Rows of the last step that are not those of the tokens selected: made anew, not read from the host pool."""
        wrong = 0
        for layer in range(LAYERS):
            ids = self.out[layer].long()
            n_rows = self.rows.size(1)
            inside = (ids >= 0) & (ids < n_rows)
            got = self.rows[layer][ids.clamp(0, n_rows - 1)]
            same = (got == row_words(self.requests.view(-1, 1), layer, selection[layer])).all(-1)
            wrong += int((~(inside & same)).sum())
        return wrong


def count_other_misses(subject, selection, m):
    """Step by step, without a graph: requests and calls in which not exactly m slots got another token."""
    other = 0
    subject.reset()
    for step in range(STEPS):
        for layer in range(LAYERS):
            before = subject.tokens[layer].clone()
            subject.swap_in(layer, selection[step, layer])
            other += int(((subject.tokens[layer] != before).sum(1) != m).sum())
    return other


def time_graph(subject, selection):
    """Microseconds a call: one graph of STEPS x LAYERS calls, the first replay not counted."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for step in range(STEPS):
            for layer in range(LAYERS):
                subject.swap_in(layer, selection[step, layer])
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    us = []
    for repeat in range(REPEATS + 1):
        subject.reset()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if repeat > 0:
            us.append(begin.elapsed_time(end) * 1e3 / (STEPS * LAYERS))
    return statistics.median(us)


def main():
    parser = argparse.ArgumentParser(description="SGLang's HiSparse swap-in on the traces of `hisparse bench swap-in --backend cuda`")
    parser.add_argument("out")
    parser.add_argument("--block-size", type=int, default=960, help="threads a block; SGLang launches 960")
    args = parser.parse_args()
    peer = "sglang " + importlib.metadata.version("sglang")
    host_words = pinned(LAYERS * WORDS * max(batch * context for batch, context in SHAPES))
    failed = False
    with open(args.out, "w") as out:
        for batch, context in SHAPES:
            subject = Subject(host_words, batch, context, args.block_size)
            for percent in PERCENTS:
                m = int(K * percent / 100 + 0.5)
                hot, selection = make_traces(batch, context, m)
                subject.warm(hot)
                other = count_other_misses(subject, selection, m)
                us = time_graph(subject, selection)
                cell = {"peer": peer, "batch": batch, "context": context, "misses_percent": percent, "rows": m,
                        "swap_in_us": round(us, 2), "wrong_rows": subject.wrong_rows(selection[-1]),
                        "other_misses": other, "block_size": args.block_size}
                failed |= cell["wrong_rows"] > 0 or other > 0
                print(json.dumps(cell), file=out, flush=True)
                print(json.dumps(cell), flush=True)
            del subject
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
