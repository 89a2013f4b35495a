# SPDX-License-Identifier: Apache-2.0
"""The corpus in memory, and needle documents for tests.

A needle is a line "key qzkfwm = 48213": six letters and five digits, all random. Asked for, it is the same line again."""
import concurrent.futures
import json
import lzma
import pathlib

import numpy

LINE = numpy.frombuffer(b"\nkey ______ = 00000\n", numpy.uint8)
KEY, VALUE = slice(5, 11), slice(14, 19)
DIGITS = VALUE.stop - VALUE.start


class Corpus:
    def __init__(self, folder, split):
        folder = pathlib.Path(folder)
        index = json.loads((folder / "documents.json").read_text())
        paths = sorted(folder.glob(f"{split}-*.xz"))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:  # lzma lets go of the interpreter's lock
            chunks = list(pool.map(lambda path: lzma.decompress(path.read_bytes()), paths))
        starts = numpy.cumsum([0] + [len(chunk) for chunk in chunks])
        self.bytes = numpy.frombuffer(bytearray().join(chunks), numpy.uint8)
        self.names = [name for name, *_ in index[split]]
        self.starts = numpy.array([starts[chunk] + offset for _, chunk, offset, _ in index[split]])
        self.sizes = numpy.array([size for *_, size in index[split]])
        self.sources = index["sources"]

    def window(self, rng, size):
        """A window inside one document, every place alike."""
        places = numpy.maximum(self.sizes - size + 1, 0)
        ends = numpy.cumsum(places)
        at = rng.integers(ends[-1])
        document = numpy.searchsorted(ends, at, side="right")
        start = self.starts[document] + at - (ends[document] - places[document])
        return self.bytes[start : start + size]


def test_document(rng, corpus, size, depths):
    """Text with a needle at each depth, then, in random order, a question for each: bytes, and where the questions'
    digits begin, [depth]. All questions are behind the text, at its very end."""
    text, n, width = corpus.window(rng, size).copy(), len(depths), len(LINE)
    lines = numpy.tile(LINE, (n, 1))
    lines[:, KEY] = rng.integers(97, 123, (n, KEY.stop - KEY.start))
    lines[:, VALUE] = rng.integers(48, 58, (n, DIGITS))
    room = size - n * width
    for depth, line in zip(depths, lines):
        place = int(depth * (room - width))
        text[place : place + width] = line
    order = rng.permutation(n)
    text[room:] = lines[order].flatten()
    return text, room + numpy.argsort(order) * width + VALUE.start
