# SPDX-License-Identifier: Apache-2.0
"""Windows of the corpus, with needles and repeated pieces, made on the GPU."""
import math

import torch

from corpus import DIGITS, KEY, LINE, VALUE

ANSWER_WEIGHT = 4.0  # of an answer's digits in the loss; what nobody can foresee, a needle's key and digits, weighs 0
SLOT = 24            # bytes a needle gets, its place in them at random
RANDOM = 0.5         # share of the windows with repeated pieces whose text is random, from 16 to 256 different bytes
REPEATED = 0.7       # share of pieces that repeat one from the window's first part


class Sampler:
    """Training windows on the device where the corpus is; nothing waits for the CPU."""

    def __init__(self, corpus, device, seed):
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.bytes, self.starts, self.sizes = (torch.from_numpy(x).to(device) for x in (corpus.bytes, corpus.starts, corpus.sizes))
        self.line = torch.from_numpy(LINE.copy()).to(device)
        self.places = {}
        # Weights of a needle's line, and of one that asks.
        self.line_weights = torch.ones(2, len(LINE), device=device)
        self.line_weights[0, KEY] = self.line_weights[0, VALUE] = 0.0
        self.line_weights[1, VALUE] = ANSWER_WEIGHT

    def rand(self, *size):
        return torch.rand(size, generator=self.generator, device=self.device)

    def integers(self, low, high, *size, dtype=torch.int64):
        return torch.randint(low, high, size, generator=self.generator, device=self.device, dtype=dtype)

    def windows(self, n, size):
        if size not in self.places:
            before = (self.sizes - size + 1).clamp(min=0).cumsum(0)
            self.places[size] = before, int(before[-1])
        ends, total = self.places[size]
        at = self.integers(0, total, n)
        document = torch.searchsorted(ends, at, right=True)
        start = self.starts[document] + at - (ends[document] - (self.sizes[document] - size + 1))
        return self.bytes[start[:, None] + torch.arange(size, device=self.device)]

    def repeat(self, text, rows):
        """In some rows, pieces of the later part become copies of pieces of the first, and what else there is may be random.
        Among many different bytes, one is enough to find a copy's source: there looking back is learned first."""
        n, size = text.shape
        at = torch.arange(size, device=self.device)[None]
        piece = (16 << self.integers(0, 4, n, 1)).clamp(max=size // 8)
        border = (size * (0.3 + 0.4 * self.rand(n, 1))).long()
        number, inside = at // piece, at % piece
        draw, chance = (self.rand(n, size).gather(1, number) for _ in range(2))
        copied = rows & (chance < REPEATED) & (at - inside >= border)
        noise = rows & (self.rand(n, 1) < RANDOM)
        alphabet = 16 << self.integers(0, 5, n, 1)
        text = torch.where(noise, (97 + (self.rand(n, size) * alphabet).long()).to(torch.uint8), text)
        text = text.gather(1, torch.where(copied, (draw * (border - piece)).long() + inside, at))
        return text, (~(noise & ~copied)).float()

    def needles(self, text, weights, rows):
        """In some rows, needles and questions for them, over what was there. Few or many; a question anywhere behind."""
        n, size = text.shape
        most = min(64, size // SLOT // 2)
        slots = self.rand(n, size // SLOT).argsort(1)[:, : 2 * most].view(n, 2, most).sort(1).values
        count = (self.rand(n, 1) * math.log(most + 1)).exp().long()
        used = rows & (torch.arange(most, device=self.device) < count)
        lines = self.line.repeat(n, most, 1)
        lines[..., KEY] = self.integers(97, 123, n, most, KEY.stop - KEY.start, dtype=torch.uint8)
        lines[..., VALUE] = self.integers(48, 58, n, most, DIGITS, dtype=torch.uint8)
        place = slots * SLOT + self.integers(0, SLOT - len(LINE) + 1, n, 2, most)
        place = place[..., None] + torch.arange(len(LINE), device=self.device)
        place = place.masked_fill(~used[:, None, :, None], size).flatten(1)  # unused ones into a column that is cut off
        put = lambda x, y: torch.cat((x, x[:, :1]), 1).scatter(1, place, y.expand(n, 2, most, len(LINE)).flatten(1))[:, :size]
        return put(text, lines[:, None]), put(weights, self.line_weights[None, :, None])

    def batch(self, n, length, needles, repeats, n_positions):
        """tokens [n][length + 1], weights [n][length] of predicting tokens 1 .. length, and positions [n][n_positions] of
        queries for the selector's loss: half of them anywhere, half where answers are read off, if any."""
        kind = self.rand(n, 1)
        text, weights = self.repeat(self.windows(n, length + 1), kind < repeats)
        text, weights = self.needles(text, weights, kind > 1 - needles)
        weights, half = weights[:, 1:], n_positions // 2
        answers = (self.rand(n, length) + (weights == ANSWER_WEIGHT)).topk(half, sorted=False).indices
        positions = torch.cat((answers, self.integers(0, length, n, n_positions - half)), 1).sort(1).values
        return text.long(), weights.contiguous(), positions
