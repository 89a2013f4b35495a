# SPDX-License-Identifier: Apache-2.0
"""Training steps on one device: a step of one kind (attention, window, with or without selector's loss) has fixed shapes,
so after a few runs it becomes a CUDA graph: launching some thousand small operations would else take longer than they do."""
import collections
import sys

import torch

import kernels
from data import ANSWER_WEIGHT
from fast import Fast
from optimizer import Optimizer

RUNS_BEFORE_CAPTURE = 2
N_SUMS = 7  # those of fast.leave, the selector's loss, and how often there was one


class Stepper:
    def __init__(self, model, device, compiled=True, captured=True):
        self.cuda = device == "cuda"
        self.optimizer = Optimizer(model, torch.bfloat16 if self.cuda else torch.float32)
        self.fast = Fast(model, ANSWER_WEIGHT, compiled)
        self.captured = captured and self.cuda
        self.runs, self.inputs, self.graphs = collections.Counter(), {}, {}
        self.sums = torch.zeros(N_SUMS, dtype=torch.float64, device=device)
        if self.cuda:
            # Autograd remembers the stream on which it first met a parameter; a capture allows no other than its own.
            torch.cuda.synchronize()  # what is above ran on the default stream
            self.stream = torch.cuda.Stream()
            torch.cuda.set_stream(self.stream)
            self.pool = torch.cuda.graph_pool_handle()

    def work(self, key, selector_loss):
        mode, _, with_selector = key
        tokens, weights, positions = self.inputs[key]
        loss, selector, sums = self.fast.loss(tokens[:, :-1], tokens[:, 1:], weights, mode, positions if with_selector else None)
        (loss + selector_loss * selector).backward()
        self.optimizer.step()
        self.optimizer.zero()
        self.sums[:5] += sums
        self.sums[5] += selector.detach()
        self.sums[6] += float(with_selector)

    def step(self, key, selector_loss, batch, rate):
        """One step of kind (mode, length, with selector's loss) on batch, what Sampler.batch gives."""
        if key not in self.inputs:
            self.inputs[key] = [x.clone() for x in batch]
        for mine, given in zip(self.inputs[key], batch):
            mine.copy_(given)
        self.optimizer.rate.fill_(rate)
        if key not in self.graphs and self.captured and key[0] == "dense" and self.runs[key] >= RUNS_BEFORE_CAPTURE:
            self.capture(key, selector_loss)
        self.runs[key] += 1
        if key in self.graphs:
            self.graphs[key].replay()
        else:
            self.work(key, selector_loss)

    def capture(self, key, selector_loss):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self.work(key, selector_loss)
            self.graphs[key] = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            print(f"no CUDA graph of {key}: {str(error)[:300]}", file=sys.stderr, flush=True)
            self.captured = kernels.leave_out("cudnn")  # the likeliest to refuse; without it, once more
        finally:
            self.optimizer.zero()

    def forget(self):
        """After a step that failed."""
        self.optimizer.zero()
        if self.cuda:
            torch.cuda.empty_cache()
