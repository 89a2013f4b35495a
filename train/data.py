# SPDX-License-Identifier: Apache-2.0
"""The corpus in memory, windows of it, and needle documents."""
import concurrent.futures
import json
import lzma
import pathlib

import numpy

ANSWER_WEIGHT = 10.0  # of an answer's digits in the loss; a needle's own digits weigh 0: nobody can foresee them
DIGITS = 7


class Corpus:
    def __init__(self, folder, split):
        folder = pathlib.Path(folder)
        index = json.loads((folder / "documents.json").read_text())
        paths = sorted(folder.glob(f"{split}-*.xz"))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:  # lzma lets go of the interpreter's lock
            chunks = list(pool.map(lambda path: lzma.decompress(path.read_bytes()), paths))
        starts = numpy.cumsum([0] + [len(chunk) for chunk in chunks])
        self.bytes = numpy.frombuffer(b"".join(chunks), numpy.uint8)
        self.names = [name for name, *_ in index[split]]
        self.starts = numpy.array([starts[chunk] + offset for _, chunk, offset, _ in index[split]])
        self.sizes = numpy.array([size for *_, size in index[split]])
        self.words, self.sources = index["words"], index["sources"]

    def window(self, rng, size):
        """A window inside one document, every place alike."""
        places = numpy.maximum(self.sizes - size + 1, 0)
        ends = numpy.cumsum(places)
        at = rng.integers(ends[-1])
        document = numpy.searchsorted(ends, at, side="right")
        start = self.starts[document] + at - (ends[document] - places[document])
        return self.bytes[start : start + size]


def needle(key, value):
    return f"\nThe secret number of {key} is {value}.\n".encode()


def question(key, value):
    return f"\nWhat was it? The secret number of {key} is {value}.\n".encode()


def draw_pairs(rng, words, n):
    """n pairs of a key of two words, no two alike, and a value."""
    keys = set()
    while len(keys) < n:
        keys.add(" ".join(words[i] for i in rng.integers(len(words), size=2)))
    return [(key, f"{rng.integers(10**DIGITS):0{DIGITS}}") for key in sorted(keys)]


def insert(text, size, events):
    """text with events (place in text, bytes, weight of the digits) put in, cut to size in all; and the weights."""
    room = size - sum(len(event[1]) for event in events)
    out, weights, at = [], [], 0
    for place, piece, weight in sorted(events, key=lambda event: event[0]):
        place = int(place * room)
        out += [text[at:place], numpy.frombuffer(piece, numpy.uint8)]
        of_piece = numpy.ones(len(piece), numpy.float32)
        of_piece[-DIGITS - 2 : -2] = weight
        weights += [numpy.ones(place - at, numpy.float32), of_piece]
        at = place
    return numpy.concatenate(out + [text[at:room]]), numpy.concatenate(weights + [numpy.ones(room - at, numpy.float32)])


def needle_window(rng, corpus, size):
    """A window with a few or many needles; every question comes at random behind its needle."""
    most = max(1, min(64, size // 250))
    n = int(numpy.exp(rng.uniform(numpy.log(1), numpy.log(most + 1))))
    events = []
    for key, value in draw_pairs(rng, corpus.words, n):
        place = rng.uniform(0, 0.98)
        events += [(place, needle(key, value), 0.0), (rng.uniform(place, 1) + 1e-9, question(key, value), ANSWER_WEIGHT)]
    return insert(corpus.window(rng, size), size, events)


def test_document(rng, corpus, size, depths):
    """Text with a needle at each depth, then, in random order, a question for each: bytes, and where the questions'
    digits begin, [depth]. All questions are behind the text, within its last len(depths) * 75 bytes."""
    pairs = draw_pairs(rng, corpus.words, len(depths))
    order = rng.permutation(len(depths))
    tail = b"".join(question(*pairs[i]) for i in order)
    text, _ = insert(corpus.window(rng, size), size - len(tail),
                     [(depth, needle(*pair), 0.0) for depth, pair in zip(depths, pairs)])
    at, starts = len(text), numpy.zeros(len(depths), numpy.int64)
    for i in order:
        at += len(question(*pairs[i]))
        starts[i] = at - DIGITS - 2
    return numpy.concatenate([text, numpy.frombuffer(tail, numpy.uint8)]), starts


def batch(seed, corpus, n, length, needles, n_positions):
    """tokens uint8 [n][length + 1], weights float [n][length] of predicting tokens 1 .. length, and positions [n]
    [n_positions] of queries for the selector's loss: half of them anywhere, half where an answer is read off, if any."""
    rng = numpy.random.default_rng(seed)
    tokens, weights = numpy.empty((n, length + 1), numpy.uint8), numpy.ones((n, length), numpy.float32)
    positions = rng.integers(length, size=(n, n_positions))
    for i in range(n):
        if rng.random() < needles:
            tokens[i], of_tokens = needle_window(rng, corpus, length + 1)
            weights[i] = of_tokens[1:]
            answers = numpy.flatnonzero(weights[i] == ANSWER_WEIGHT)
            if len(answers):
                positions[i, : n_positions // 2] = rng.choice(answers, n_positions // 2)
        else:
            tokens[i] = corpus.window(rng, length + 1)
    return tokens, weights, numpy.sort(positions, 1)
