#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train one model: train.py NAME DATA OUT SECONDS [--tiny]. Writes OUT/NAME.safetensors at the end of every phase and
when the time is up, OUT/NAME.log.jsonl, and OUT/NAME.train.json. Everything follows the clock: phases and learning rate
are functions of elapsed time / SECONDS, so whatever the speed the model is finished when the time is."""
import collections
import concurrent.futures
import contextlib
import json
import pathlib
import sys
import time

import numpy
import torch
import torch.nn.functional as F

import export
import optimizer
from data import ANSWER_WEIGHT, Corpus, batch
from layers import prepare_gpu
from model import Decoder, Run, bits
from shapes import LONG, MICRO_TOKENS, PHASES, SHAPES, STEP_TOKENS, TINY_SHAPES, tiny_phases

SEEDS = {"look-quest": 11, "look-nsa": 12, "look-dsa": 13}
SELECTOR_QUERIES = 2048  # a step, over all its sequences: [8 heads][2048][4096] floats are 268 MB a layer
LOG_SECONDS = 3.0
PREFETCH = 4


class Trainer:
    def __init__(self, name, data, out, seconds, tiny):
        self.begin, self.name, self.seconds, self.tiny = time.perf_counter(), name, seconds, tiny
        self.out = pathlib.Path(out)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(SEEDS[name])
        self.seed = SEEDS[name] * 10**9
        self.phases = tiny_phases(name) if tiny else PHASES[name]
        self.model = Decoder((TINY_SHAPES if tiny else SHAPES)[name]).to(self.device)
        self.optimizer = optimizer.Optimizer(self.model)
        self.corpus = Corpus(data, "train")
        self.pick = numpy.random.default_rng(SEEDS[name])
        self.steps = self.tokens = self.out_of_memory = 0
        self.micro = {}  # (mode, length): sequences at a time, once memory has run out
        self.ahead = collections.deque()
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        self.log_file = open(self.out / f"{name}.log.jsonl", "w")
        self.logged_at, self.sums = 0.0, None
        self.tokens_of_length = collections.Counter()

    def progress(self):
        return (time.perf_counter() - self.begin) / self.seconds

    def order(self, phase):
        """Ask the pool for the next batch of this phase."""
        length = int(self.pick.choice(list(phase.lengths), p=list(phase.lengths.values())))
        n = max(1, (1024 if self.tiny else STEP_TOKENS) // length)
        if length == LONG and phase.mode == "dense":
            n = 2
        self.seed += 1
        queries = max(16, (64 if self.tiny else SELECTOR_QUERIES) // n)
        self.ahead.append((phase, length, self.pool.submit(batch, self.seed, self.corpus, n, length, phase.needles, queries)))

    def next_batch(self, phase):
        while self.ahead and self.ahead[0][0] is not phase:  # of a phase that is over
            self.ahead.popleft()
        while len(self.ahead) < PREFETCH:
            self.order(phase)
        _, length, future = self.ahead.popleft()
        return length, future.result()

    def backward(self, phase, tokens, weights, positions, share):
        """Forward and backward of some sequences; the sums that the log needs."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        run = Run(phase.mode, positions, "loss" if phase.selector_loss else "")
        mixed = torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else contextlib.nullcontext()
        with mixed:
            logits = self.model(inputs, run)
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(weights)
        loss = (losses * weights).sum() / weights.sum()
        selector = sum(run.losses) if run.losses else loss.new_zeros(())
        ((loss + phase.selector_loss * selector) * share).backward()
        with torch.no_grad():
            answers, plain = weights == ANSWER_WEIGHT, weights == 1
            right = logits.argmax(-1) == targets
            return torch.stack([(losses * plain).sum(), plain.sum(), (losses * answers).sum(), answers.sum(),
                                (right & answers).sum(), selector.detach() * share, loss.new_ones(()) * share]).double()

    def step(self, phase, length, arrays):
        n = len(arrays[0])
        micro = self.micro.get((phase.mode, length), max(1, MICRO_TOKENS[phase.mode] // length))
        total = 0
        for start in range(0, n, micro):
            part = [torch.from_numpy(array[start : start + micro]).to(self.device) for array in arrays]
            part[0] = part[0].long()
            total = total + self.backward(phase, *part, len(part[0]) / n)
        self.optimizer.step(optimizer.rate_scale(self.progress()))
        self.optimizer.zero()
        return total

    def shrink(self, phase, length):
        """Memory ran out: half as many sequences at a time, and below one the length is left out."""
        self.out_of_memory += 1
        self.optimizer.zero()
        self.release()
        now = self.micro.get((phase.mode, length), max(1, MICRO_TOKENS[phase.mode] // length))
        if now > 1:
            self.micro[phase.mode, length] = now // 2
        elif len(phase.lengths) > 1:
            del phase.lengths[length]
            total = sum(phase.lengths.values())
            phase.lengths = {key: value / total for key, value in phase.lengths.items()}
        else:
            phase.lengths = {max(256, length // 2 // 64 * 64): 1.0}
        self.ahead.clear()

    def log(self, phase, length, sums):
        """One line every few seconds. Reading the sums waits for the GPU, so elapsed time is time of work done."""
        self.sums = sums if self.sums is None else self.sums + sums
        elapsed = time.perf_counter() - self.begin
        if elapsed - self.logged_at < LOG_SECONDS and self.steps > 1:
            return
        text, n_text, answer, n_answer, right, selector, n = self.sums.tolist()
        line = {"model": self.name, "step": self.steps, "seconds": round(elapsed, 1), "tokens": self.tokens, "length": length,
                "mode": phase.mode, "bits_per_byte": round(bits(text / n_text), 4), "rate": round(optimizer.rate_scale(self.progress()), 3)}
        if n_answer:
            line |= {"answer_bits": round(bits(answer / n_answer), 3), "digits_right": round(right / n_answer, 3)}
        if phase.selector_loss:
            line["selector_loss"] = round(selector / n, 4)
        self.log_file.write(json.dumps(line) + "\n")
        self.log_file.flush()
        print(json.dumps(line), flush=True)
        self.logged_at, self.sums = elapsed, None

    def release(self):
        """Give back memory that was cut for other lengths."""
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def save(self):
        export.save(self.model, self.out / f"{self.name}.safetensors")

    def train(self):
        index = 0
        before = None
        while (progress := self.progress()) < 1:
            while progress >= self.phases[index].until and index + 1 < len(self.phases):
                index += 1
                self.save()
                self.release()
            phase = self.phases[index]
            length, arrays = self.next_batch(phase)
            fits = True
            try:
                sums = self.step(phase, length, arrays)
                if before is not None:
                    before.cpu()  # stay at most one step ahead of the GPU, or the clock means nothing
                before = sums
            except torch.OutOfMemoryError:
                fits = False  # the exception holds the step's tensors until this block is left
            if not fits:
                self.shrink(phase, length)
                continue
            self.steps += 1
            self.tokens += arrays[1].size
            self.tokens_of_length[f"{phase.mode} {length}"] += arrays[1].size
            self.log(phase, length, sums)
        self.save()
        self.report()

    def report(self):
        facts = {"model": self.name, "shape": self.model.shape, "parameters": sum(p.numel() for p in self.model.parameters()),
                 "seed": SEEDS[self.name], "seconds": round(time.perf_counter() - self.begin, 1), "steps": self.steps,
                 "tokens": self.tokens, "tokens_of_length": dict(self.tokens_of_length), "out_of_memory": self.out_of_memory,
                 "device": torch.cuda.get_device_name() if self.device == "cuda" else "CPU", "torch": torch.__version__,
                 "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if self.device == "cuda" else None,
                 "phases": [vars(phase) for phase in self.phases],
                 "optimizer": {"muon_rate": optimizer.MUON_RATE, "muon_momentum": optimizer.MUON_MOMENTUM, "decay": optimizer.DECAY,
                               "adam_rates": {key or "other": rate for key, rate in optimizer.RATES.items()},
                               "betas": optimizer.BETAS, "clip": optimizer.CLIP, "answer_weight": ANSWER_WEIGHT,
                               "step_tokens": STEP_TOKENS},
                 "sources": self.corpus.sources}
        (self.out / f"{self.name}.train.json").write_text(json.dumps(facts))


def main():
    name, data, out, seconds = sys.argv[1:5]
    prepare_gpu()
    Trainer(name, data, out, float(seconds), "--tiny" in sys.argv[5:]).train()


if __name__ == "__main__":
    main()
