#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hisparse score` on tiny models of every kind of attention: equal digests with and without the cache, sums that are right,
and everything that can be wrong with its options.

usage: test_score.py BUILD_DIR     prints TAP
"""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_run as t  # noqa: E402
from test_run_small import ARCHITECTURES, cuda, cuda_models, model_file  # noqa: E402

TEXT = t.TEXT * 4
READ = 300  # of its tokens; the rest, but for what a test says, is scored
THREADS = ["--threads", "1"]


def text_file(text=TEXT):
    with open("text", "w") as out:
        out.write(text)
    return "text"


def usual(model, *args):
    return ["--model", model, "--text", text_file(), "--prompt-tokens", str(READ), "--tokens", "24", *args]


def score(model, *args):
    return json.loads(t.run(*usual(model, *args), "--json", command="score")[0])


def refused(*args, **kwargs):
    t.refused(*args, command="score", **kwargs)


# Good runs

def cache_changes_no_bit():
    for architecture in ARCHITECTURES:
        model = model_file(architecture)
        want = score(model, "--all-resident", *THREADS)
        assert want["slots"] is None and want["hits"] is None and want["misses"] is None and want["top_k"] == 64, want
        for extra in (["--slots", "64"], ["--slots", "128"], ["--slots", "256"], ["--slots", "64", "--backend", "ref"]):
            got = score(model, *extra, *THREADS)
            assert got["digest"] == want["digest"] and got["each"] == want["each"], (architecture, extra)
            assert got["bits_per_byte"] == want["bits_per_byte"] and got["misses"] > 0 and got["slots"] == int(extra[1]), got


def dense_attends_to_more():
    """It differs where there are more tokens than are chosen, and nowhere else."""
    for architecture in ARCHITECTURES:
        model = model_file(architecture)
        dense, sparse = score(model, "--dense", *THREADS), score(model, "--all-resident", *THREADS)
        assert dense["dense"] and dense["all_resident"] and dense["digest"] != sparse["digest"], architecture
        short = ["--prompt-tokens", "40", *THREADS]  # 40 + 24 - 1 tokens are decoded; 64 are chosen
        assert score(model, "--dense", *short)["digest"] == score(model, "--all-resident", *short)["digest"], architecture


def dense_is_a_selection_of_all():
    """The same model, made to choose more than there is."""
    for architecture, more in (("mla_dsa", {"top_k": 512}), ("gqa_nsa", {"n_blocks": 32}), ("gqa_quest", {"top_k": 512})):
        all_of_it = model_file(architecture, **more)
        dense = score(model_file(architecture), "--dense", *THREADS)
        assert dense["digest"] == score(all_of_it, "--all-resident", *THREADS)["digest"], architecture


def numbers_add_up():
    r = score(model_file("mla_dsa"), "--slots", "64", *THREADS)
    each = r["each"]
    assert bytes(each["token"]).decode() == TEXT[READ:READ + 24], each["token"]
    assert [len(values) for values in each.values()] == [24, 24, 24] and r["scored_tokens"] == r["scored_bytes"] == 24
    assert abs(sum(each["bits"]) / 24 - r["bits_per_byte"]) < 1e-12 and all(bits > 0 for bits in each["bits"])
    for token, bits, argmax in zip(*each.values()):
        assert 0 <= argmax < 256 and (token != argmax or bits <= 8), (token, bits, argmax)
    assert r["decode_tokens_per_second"] > 0 and r["prefill_seconds"] > 0 and not r["stopped"]


def likeliest_are_what_run_generates():
    """Of the text followed by what `hisparse run` made of it, every token that follows is the likeliest."""
    for architecture in ARCHITECTURES:
        made = ["--model", model_file(architecture), "--prompt", TEXT[:READ], "--max-tokens", "8", *THREADS]
        written, _ = t.run(*made)
        with open("continued", "wb") as out:
            out.write(TEXT[:READ].encode() + written[:8])
        r = json.loads(t.run("--model", model_file(architecture), "--text", "continued", "--prompt-tokens", str(READ), "--json",
                             *THREADS, command="score")[0])
        assert r["each"]["token"] == r["each"]["argmax"] == list(written[:8]), (architecture, r["each"], written[:8])


def without_a_prompt():
    for architecture in ARCHITECTURES:
        args = ["--prompt-tokens", "1", "--tokens", "40", *THREADS]
        assert score(model_file(architecture), *args)["digest"] == score(model_file(architecture), "--all-resident", *args)["digest"]


def tokens_of_several_bytes():
    """Of a GGUF model bits are counted a byte, too."""
    model = t.plain_model()
    args = ["--prompt-tokens", "40", *THREADS]
    r = score(model, "--slots", "1024", *args)
    assert r["scored_tokens"] == 24 < r["scored_bytes"] and r["top_k"] == 1024, r
    assert abs(sum(r["each"]["bits"]) / r["scored_bytes"] - r["bits_per_byte"]) < 1e-12
    assert r["digest"] == score(model, "--all-resident", *args)["digest"]


def table_and_file():
    out, err = t.run(*usual(model_file("gqa_nsa"), "--output", "table", *THREADS), command="score")
    assert out == b"" and err == f"reading {READ} tokens\n", (out, err)
    table = open("table").read()
    r = score(model_file("gqa_nsa"), *THREADS)
    for part in (f"{READ} read + 24 scored, top-k 64", f"{r['bits_per_byte']:.4f} (24 bytes)", r["digest"], " slots\n"):
        assert part in table, (part, table)


def whole_context():
    """The last token needs no place in it."""
    text_file(t.TEXT * 8)
    args = ["--model", model_file("gqa_quest"), "--text", "text", "--prompt-tokens", "500", *THREADS]
    assert b" 500 read + 13 scored" in t.run(*args, "--tokens", "13", command="score")[0]
    refused(*args, "--tokens", "14", says=["--prompt-tokens and --tokens are 500 and 14; the model has 512 tokens of context"])
    refused(*args, says=[f"--tokens are 500 and {len(t.TEXT) * 8 - 500}; the model has 512"])


# On a GPU

def cuda_cache_changes_no_bit():
    cuda()
    for model in cuda_models()[:3]:
        args = ["--backend", "cuda"]
        want = score(model, "--all-resident", *args)
        slots = want["top_k"]
        for n in (slots, 2 * slots, 4 * slots):
            got = score(model, "--slots", str(n), *args)
            assert got["digest"] == want["digest"] and got["each"] == want["each"], (model, n)


def cuda_dense():
    """As on the CPU, but for the rounding."""
    cuda()
    for model in cuda_models()[:3]:
        here, there = score(model, "--dense"), score(model, "--dense", "--backend", "cuda")
        assert abs(here["bits_per_byte"] - there["bits_per_byte"]) < 0.05, (model, here["bits_per_byte"], there["bits_per_byte"])


# Bad options

def wrong_options():
    model = model_file("gqa_nsa")
    refused("--text", text_file(), says=["--model is needed"])
    refused("--model", model, says=["--text is needed"])
    refused("--model", model, "--text", "nowhere", says=["--text 'nowhere': No such file or directory"])
    refused("--model", "nowhere.safetensors", "--text", text_file(), says=["--model: nowhere.safetensors: cannot be opened"])
    refused("--model", model, "--text", ".", says=["--text '.': not a regular file"])
    refused("--model", model, "--text", os.devnull, says=["not a regular file"])
    refused("--model", model, "--text", text_file(""), says=["the text is empty: 0 bytes, 0 tokens"])
    n = len(TEXT)
    refused("--model", model, "--text", text_file(), "--prompt-tokens", str(n),
            says=[f"--prompt-tokens is {n}; the text has {n}, and one at least is scored"])
    refused(*usual(model, "--tokens", "100"), says=[f"--tokens is 100; after --prompt-tokens, 300, the text has {n - 300}"])
    refused(*usual(model, "--slots", "63"), says=["--slots is 63; it must be at least top-k, 64"])
    refused(*usual(model, "--slots", "64", "--all-resident"), says=["--slots is not for --all-resident"])
    refused(*usual(model, "--slots", "64", "--dense"), says=["--slots is not for --dense"])
    refused(*usual(model, "--slots", "x"), says=["n_slots"])
    refused(*usual(model, "--backend", "gpu"), says=["gpu"])
    refused(*usual(model, "--output", "no/folder/file"), says=["cannot write 'no/folder/file'"])


TESTS = [cache_changes_no_bit, dense_attends_to_more, dense_is_a_selection_of_all, numbers_add_up,
         likeliest_are_what_run_generates, without_a_prompt, tokens_of_several_bytes, table_and_file, whole_context,
         cuda_cache_changes_no_bit, cuda_dense, wrong_options]


if __name__ == "__main__":
    sys.exit(t.main(TESTS))
