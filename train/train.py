#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train one model: train.py NAME DATA OUT SECONDS [--base FILE] [--plain] [--profile] [--tiny]. Writes OUT/NAME.safetensors
at the end of every phase and when the time is up, OUT/NAME.log.jsonl, and OUT/NAME.train.json.

Everything follows the clock: phases and learning rate are functions of elapsed time, so whatever the speed the model is
finished SECONDS after the start. --base: a trained look-quest to begin from. --plain: neither compiled code nor CUDA
graphs. --profile: 20 steps of each kind instead of training, a JSON line each."""
import argparse
import collections
import fcntl
import json
import pathlib
import sys
import time

import numpy
import torch

import convert
import export
import kernels
import optimizer
from corpus import Corpus
from data import ANSWER_WEIGHT, Sampler
from layers import prepare_gpu
from model import Decoder, bits
from shapes import PHASES, RATE, SHAPES, STEP_TOKENS, TINY_SHAPES, TINY_STEP_TOKENS, tiny_phases
from stepper import Stepper

SEEDS = {"look-quest": 11, "look-nsa": 12, "look-dsa": 13}
SELECTOR_QUERIES = 512  # a step, over all its sequences: [8 heads][512][33,024] floats are 541 MB
LOG_SECONDS = 4.0
AHEAD = 3               # steps queued beyond the one the GPU is at


class Trainer:
    def __init__(self, options):
        self.begin = time.perf_counter()
        self.name, self.tiny, self.base = options.name, options.tiny, options.base
        self.out, self.seconds = pathlib.Path(options.out), options.seconds
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(SEEDS[self.name])
        self.phases = tiny_phases(self.name) if self.tiny else PHASES[self.name]
        self.step_tokens = TINY_STEP_TOKENS if self.tiny else STEP_TOKENS
        model = Decoder((TINY_SHAPES if self.tiny else SHAPES)[self.name])
        if self.base:
            convert.begin(model, export.load(self.base))
        elif self.name == "look-quest":
            convert.look_near(model)
        self.model = model.to(self.device)
        self.compiled = not options.plain
        self.stepper = Stepper(self.model, self.device, self.compiled, self.compiled)
        corpus = Corpus(options.data, "train")
        self.sources = corpus.sources
        self.sampler = Sampler(corpus, self.device, SEEDS[self.name])
        self.pick = numpy.random.default_rng(SEEDS[self.name])
        self.steps = self.tokens = self.out_of_memory = 0
        self.tokens_of_length = collections.Counter()
        self.queue = collections.deque()
        self.log_file = open(self.out / f"{self.name}.log.jsonl", "w")
        self.logged_at = 0.0

    def elapsed(self):
        return time.perf_counter() - self.begin

    def progress(self):
        """Of the time after start and compiling."""
        return (self.elapsed() - self.ready) / max(1e-3, self.seconds - self.ready)

    def warm_up(self):
        """Compile all pieces and choose kernels, without learning; a step that fails to compile is run plain."""
        phase = self.phases[0]
        length = next(iter(phase.lengths))
        tokens, weights, _ = self.sampler.batch(self.step_tokens // length, length, 1.0, 0.0, 2)
        try:
            self.stepper.fast.loss(tokens[:, :-1], tokens[:, 1:], weights, "dense")[0].backward()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler may throw
            if not self.compiled:
                raise
            print(f"not compiled: {str(error)[:500]}", file=sys.stderr, flush=True)
            self.compiled = False
            self.stepper.fast = type(self.stepper.fast)(self.model, ANSWER_WEIGHT, False)
        self.stepper.forget()
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.ready = self.elapsed()

    def run(self, phase, length, with_selector, rate):
        n = self.step_tokens // length
        queries = max(16, (64 if self.tiny else SELECTOR_QUERIES) // n) if phase.selector_loss else 2
        batch = self.sampler.batch(n, length, phase.needles, phase.repeats, queries)
        self.stepper.step((phase.mode, length, with_selector), phase.selector_loss, batch, rate)

    def step(self, phase):
        length = int(self.pick.choice(list(phase.lengths), p=list(phase.lengths.values())))
        with_selector = phase.selector_loss > 0 and self.steps % phase.selector_every == 0
        fits = True
        try:
            self.run(phase, length, with_selector, RATE[self.name] * optimizer.rate_scale(self.progress()))
            self.wait()
        except torch.OutOfMemoryError:
            fits = False  # the exception holds the step's tensors until this block is left
        if not fits:
            self.shrink(phase, length)
            return
        self.steps += 1
        self.tokens += self.step_tokens
        self.tokens_of_length[f"{phase.mode} {length}"] += self.step_tokens
        self.log(phase, length)

    def wait(self):
        """Stay a few steps ahead of the GPU and no more, or the clock means nothing."""
        if self.device == "cuda":
            event = torch.cuda.Event()
            event.record()
            self.queue.append(event)
            if len(self.queue) > AHEAD:
                self.queue.popleft().synchronize()

    def shrink(self, phase, length):
        """Memory ran out: the window is left out, or if the phase has no other, a quarter of it takes its place."""
        self.out_of_memory += 1
        self.stepper.forget()
        del phase.lengths[length]
        total = sum(phase.lengths.values())
        shorter = next(n for n in range(length // 4 // 48 * 48, 0, -48) if self.step_tokens % n == 0)
        phase.lengths = {key: value / total for key, value in phase.lengths.items()} or {shorter: 1.0}

    def log(self, phase, length):
        """One line every few seconds; reading the sums waits for the GPU."""
        if self.elapsed() - self.logged_at < LOG_SECONDS and self.steps > 1:
            return
        text, n_text, answer, n_answer, right, selector, n_selector = self.stepper.sums.tolist()
        self.stepper.sums.zero_()
        self.logged_at = self.elapsed()
        line = {"model": self.name, "step": self.steps, "seconds": round(self.logged_at, 1), "tokens": self.tokens, "length": length,
                "mode": phase.mode, "bits_per_byte": round(bits(text / max(1, n_text)), 4),
                "rate": round(RATE[self.name] * optimizer.rate_scale(self.progress()), 3)}
        if n_answer:
            line |= {"answer_bits": round(bits(answer / n_answer), 3), "digits_right": round(right / n_answer, 3)}
        if n_selector:
            line["selector_loss"] = round(selector / n_selector, 4)
        self.log_file.write(json.dumps(line) + "\n")
        self.log_file.flush()
        print(json.dumps(line), flush=True)

    def save(self):
        export.save(self.model, self.out / f"{self.name}.safetensors")

    def train(self):
        self.warm_up()
        index = 0
        while (progress := self.progress()) < 1:
            while progress >= self.phases[index].until and index + 1 < len(self.phases):
                index += 1
                self.save()
            self.step(self.phases[index])
        self.save()
        self.report()

    def kinds(self):
        """Every (phase, length, with selector's loss) that training comes to, once."""
        seen = {}
        for phase in self.phases:
            for length in phase.lengths:
                for with_selector in ((False, True) if phase.selector_loss else (False,)):
                    seen.setdefault((phase.mode, length, with_selector), phase)
        return seen

    def profile(self):
        """Time steps of every kind, alone on the GPU: others wait for a lock, but compile meanwhile."""
        self.warm_up()
        print(json.dumps({"model": self.name, "start_and_compile_s": round(self.ready, 1), "compiled": self.compiled,
                          "parameters": sum(p.numel() for p in self.model.parameters())}), flush=True)
        finish = torch.cuda.synchronize if self.device == "cuda" else lambda: None
        with open(self.out / "profile.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for (mode, length, with_selector), phase in self.kinds().items():
                if self.elapsed() > self.seconds:
                    break
                if self.device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                line = {"model": self.name, "mode": mode, "length": length, "selector": with_selector}
                try:
                    begin = time.perf_counter()
                    for _ in range(4 if mode == "dense" else 1):  # kernels are chosen, the graph is made
                        self.run(phase, length, with_selector, 0.3)
                    finish()
                    line["first_s"] = round(time.perf_counter() - begin, 2)
                    begin, n, issued = time.perf_counter(), 0, 0.0
                    while n < 20 and time.perf_counter() - begin < 1.5:
                        start = time.perf_counter()
                        self.run(phase, length, with_selector, 0.3)
                        issued += time.perf_counter() - start
                        n += 1
                        if n % 4 == 0 or mode == "sparse":
                            finish()
                    finish()
                    seconds = (time.perf_counter() - begin) / n
                    line |= {"steps": n, "ms": round(seconds * 1e3, 2), "issue_ms": round(issued / n * 1e3, 2),
                             "m_tokens_s": round(self.step_tokens / seconds / 1e6, 3),
                             "graph": (mode, length, with_selector) in self.stepper.graphs}
                    if self.device == "cuda":
                        line["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
                    line["loss_finite"] = bool(self.stepper.sums.isfinite().all())
                except torch.OutOfMemoryError:
                    line["out_of_memory"] = True
                print(json.dumps(line), flush=True)
        for entry in kernels.report:
            print(json.dumps({"model": self.name} | entry), flush=True)

    def report(self):
        facts = {"model": self.name, "shape": self.model.shape, "parameters": sum(p.numel() for p in self.model.parameters()),
                 "seed": SEEDS[self.name], "begins_from": "look-quest" if self.base else None,
                 "seconds": round(self.elapsed(), 1), "start_and_compile_s": round(self.ready, 1), "steps": self.steps,
                 "tokens": self.tokens, "tokens_of_length": dict(self.tokens_of_length), "out_of_memory": self.out_of_memory,
                 "compiled": self.compiled, "graphs": [list(key) for key in self.stepper.graphs], "kernels": kernels.report,
                 "device": torch.cuda.get_device_name() if self.device == "cuda" else "CPU", "torch": torch.__version__,
                 "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if self.device == "cuda" else None,
                 "phases": [vars(phase) for phase in self.phases],
                 "optimizer": {"rate": RATE[self.name], "muon_rate": optimizer.MUON_RATE, "muon_momentum": optimizer.MUON_MOMENTUM,
                               "decay": optimizer.DECAY, "adam_rates": {key or "other": rate for key, rate in optimizer.RATES.items()},
                               "betas": optimizer.BETAS, "clip": optimizer.CLIP, "answer_weight": ANSWER_WEIGHT,
                               "step_tokens": self.step_tokens},
                 "sources": self.sources}
        (self.out / f"{self.name}.train.json").write_text(json.dumps(facts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("data")
    parser.add_argument("out")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--base", metavar="FILE")
    for flag in ("--plain", "--profile", "--tiny"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    prepare_gpu()
    trainer = Trainer(options)
    trainer.profile() if options.profile else trainer.train()


if __name__ == "__main__":
    main()
