#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/accuracy.py on tiny models and short texts: the numbers are those of `hisparse score`, and a difference ends it.

usage: test_accuracy.py BUILD_DIR     prints TAP
"""
import json
import lzma
import os
import sys
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(os.path.dirname(HERE)), "bench")]
import accuracy  # noqa: E402
import make_tables  # noqa: E402
import test_run as t  # noqa: E402
from test_run_small import ARCHITECTURES, model_file  # noqa: E402

os.environ["OMP_NUM_THREADS"] = "1"  # many small processes
LINES = ["\nkey qzkfwm = 48213\n", "\nkey abcdef = 90817\n"]


def short_texts():
    """Two documents, and two needle documents of 200 bytes, in place of bench/heldout.json.xz."""
    documents = [(t.TEXT * 4)[i:i + 320] for i in range(2)]
    body = LINES[0] + t.TEXT[:30] + LINES[1] + t.TEXT * 2
    needles = [{"length": 200, "text": body[:200 - 40] + LINES[1] + LINES[0], "starts": [200 - 6, 200 - 26]}] * 2
    with lzma.open("texts.xz", "wt") as out:
        json.dump({"sources": {"here": {"version": "1", "licence": "MIT"}}, "documents": documents, "needles": needles}, out)
    accuracy.TEXTS, accuracy.SCORED, accuracy.SHORT, accuracy.PIECE, accuracy.DEPTHS = "texts.xz", 64, 100, 32, (0.0, 0.5)


def options(*models, hisparse=t.HISPARSE):
    return SimpleNamespace(models=models, hisparse=hisparse, backend="cpu", documents=2, needles=2)


def numbers_are_those_of_score():
    short_texts()
    models = [model_file(architecture) for architecture in ARCHITECTURES]
    results = accuracy.measure_all(options(*models), "abc")
    document = json.load(lzma.open("texts.xz"))["documents"][0]
    with open("document", "w") as out:
        out.write(document)
    for model in models:
        of = results["models"][model.removesuffix(".safetensors")]
        bits = of["bits_per_byte"]
        assert bits["sparse"] == bits["slots_k"] == bits["slots_2k"] == bits["slots_4k"] != bits["dense"] != bits["short_context"], bits
        assert bits["dense"]["documents"] == 2 and bits["dense"]["error"] > 0 and of["top_k"] == 64, of
        assert of["steps_compared"] == 2 * 64 + 2 * 40, of
        assert of["needles"]["dense"] == {"200": {"0%": [of["needles"]["dense"]["200"]["0%"][0], 2],
                                                  "50%": [of["needles"]["dense"]["200"]["50%"][0], 2]}}, of["needles"]
        assert of["rows"]["slots_k"]["misses"] > of["rows"]["slots_4k"]["misses"] > 0, of["rows"]
        r = json.loads(t.run("--model", model, "--text", "document", "--prompt-tokens", "256", "--dense", "--json", command="score")[0])
        assert r["digest"] and abs(r["bits_per_byte"] - bits["dense"]["mean"]) < 1, (r["bits_per_byte"], bits)
    page = make_tables.accuracy_section(results)
    for part in ("## mla_dsa", "| needles in 200 bytes | - | ", " of 4 |", "bit for bit", "here 1 (MIT)", "commit abc", "| 64 slots | 128 slots | 256 slots |"):
        assert part in page, (part, page)


def digits_are_found():
    """All five, where they are said to be, and no others."""
    tail = LINES[1] + LINES[0]
    token, needle = list(tail.encode()), {"length": 200, "starts": [200 - 6, 200 - 26]}
    assert tail[-6:-1] == "48213" and tail[-26:-21] == "90817"
    blind = [0 if chr(c).isdigit() else c for c in token]
    half = [c if i >= 20 else 0 for i, c in enumerate(token)]
    almost = token[:-2] + [0, token[-1]]
    for argmax, want in ((token, [True, True]), (blind, [False, False]), (half, [True, False]), (almost, [False, True])):
        assert accuracy.count_found(needle, {"token": token, "argmax": argmax}) == want, (argmax, want)


def a_difference_ends_it():
    """A command whose logits depend on the slots."""
    short_texts()
    with open("liar", "w") as out:
        out.write("#!/bin/sh\ncase \"$*\" in *'--slots 128'*) d=1 ;; *) d=0 ;; esac\n"
                  "echo '{\"digest\": \"'$d'\", \"bits_per_byte\": 1, \"hits\": 1, \"misses\": 1, \"each\": {}}'\n")
    os.chmod("liar", 0o755)
    for hisparse, says in ((os.path.abspath("liar"), "the logits DIFFER between columns"), ("/bin/false", "ended with 1")):
        try:
            accuracy.measure_all(options(model_file("mla_dsa"), hisparse=hisparse), "abc")
        except SystemExit as end:
            assert says in str(end), end
        else:
            raise AssertionError(f"{hisparse} was believed")


def texts_are_what_the_report_needs():
    """The file in the tree."""
    path = os.path.join(accuracy.ROOT, "bench", "heldout.json.xz")
    texts = json.load(lzma.open(path))
    assert os.path.getsize(path) < 300000 and len(texts["documents"]) == accuracy.DOCUMENTS
    assert {len(text) for text in texts["documents"]} == {accuracy.LENGTH} and texts["sources"]
    assert [n["length"] for n in texts["needles"]] == sorted(accuracy.NEEDLE_LENGTHS * accuracy.NEEDLES)
    for needle in texts["needles"]:
        text = needle["text"]
        assert len(text) == needle["length"] and len(needle["starts"]) == 5
        for start in needle["starts"]:
            line = text[start - 13:start + 5]
            assert start > len(text) - 100 and line[-5:].isdigit() and text.count(line) == 2 and text.find(line) < len(text) - 100, line


TESTS = [numbers_are_those_of_score, digits_are_found, a_difference_ends_it, texts_are_what_the_report_needs]


if __name__ == "__main__":
    sys.exit(t.main(TESTS))
