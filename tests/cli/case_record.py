# SPDX-License-Identifier: Apache-2.0
"""`hisparse trace record`: what a model selects, and that a sweep of it counts the misses which that very run had."""
import signal
import subprocess
import sys
from pathlib import Path

from traces import read

TESTS = Path(__file__).resolve().parent.parent
TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void. " * 3
STORES = {"gqa_quest": [1, 2], "gqa_nsa": [0, 1, 2, 3, 4, 5], "mla_dsa": [0, 1, 2]}  # the first Quest layer is dense


def model(cli, architecture):
    path = cli.folder / f"{architecture}.model.safetensors"
    if not path.exists():
        subprocess.run([sys.executable, str(TESTS / "make_tiny_safetensors.py"), architecture, str(path)], check=True)
    return path.name


def record(cli, architecture, *options):
    (cli.folder / "recorded.safetensors").unlink(missing_ok=True)
    r = cli.run("trace", "record", "recorded.safetensors", "--model", model(cli, architecture), "--prompt", TEXT, "--max-tokens",
                "60", "--ignore-eos", "--json", *options)
    cli.same((r.code, r.err), (0, ""), f"record {architecture} {options}")
    return r.json()


def test_shape_and_notes(cli):
    for architecture, stores in STORES.items():
        record(cli, architecture, "--licence", "CC0", "--text", "Genesis")
        metadata, tensors = read(cli.folder / "recorded.safetensors")
        cli.same(tensors["selections"][0], [60, len(stores), 1, 64], f"shape of {architecture}")
        cli.same(tensors["lengths"][1], [len(TEXT) + s for s in range(60)], "lengths: tokens are bytes")
        cli.same((metadata["selector"], metadata["layers"], metadata["licence"], metadata["text"], metadata["steps"]),
                 (architecture.split("_")[1], ",".join(map(str, stores)), "CC0", "Genesis", "60"), "notes")


def test_a_sweep_counts_what_the_run_missed(cli):
    for architecture in ("gqa_quest", "mla_dsa"):
        for policy in ("lru", "fifo", "random", "clock"):
            for slots in ("64", "150"):
                ran = record(cli, architecture, "--policy", policy, "--slots", slots)["layers"]
                rows = cli.run("sweep", "recorded.safetensors", "--json", "--by-layer", "--policies", policy, "--slots", slots).json()["rows"]
                counted = {row["layer"]: row["misses"] for row in rows if row["layer"] is not None}
                cli.same(counted, {n: ran[n]["misses"] for n in STORES[architecture]}, f"{architecture} {policy} {slots}")


def test_next(cli):
    """Candidates are disjoint from the selection and best first. In the first step of the first sparse layer nothing depends on k
    yet: with its candidates a selection of 64 is a selection of 128."""
    for architecture, page in (("gqa_quest", 16), ("mla_dsa", 1)):
        record(cli, architecture, "--top-k", "128")
        wide = read(cli.folder / "recorded.safetensors")[1]["selections"][1][:128]
        record(cli, architecture, "--next", "64")
        tensors = read(cli.folder / "recorded.safetensors")[1]
        (shape, selections), (_, tokens), (_, scores) = (tensors[n] for n in ("selections", "next_tokens", "next_scores"))
        cli.same(sorted(set(selections[:64] + tokens[:64]) - {-1}), [t for t in wide if t >= 0], f"selection and candidates of {architecture}")
        for at in range(0, len(selections), 64):
            ranked = tokens[at:at + 64]
            cli.same(set(selections[at:at + 64]) & set(ranked) - {-1}, set(), "tokens in both")
            cli.same(scores[at:at + 64], sorted(scores[at:at + 64], reverse=True), "scores")
            cli.same(ranked, [t - t % page + i % page for i, t in enumerate(ranked)], "whole pages")
        cli.same(len(tokens), shape[0] * shape[1] * 64, "candidates of all steps and layers")


def test_next_beyond_the_text(cli):
    """All tokens that are not selected, and no more."""
    n = len(TEXT) - 64
    record(cli, "mla_dsa", "--next", "300")
    tensors = read(cli.folder / "recorded.safetensors")[1]
    first, scores = tensors["next_tokens"][1][:300], tensors["next_scores"][1][:300]
    cli.same(sorted(first[:n] + tensors["selections"][1][:64]), list(range(len(TEXT))), "all tokens")
    cli.same((first[n:], scores[n:]), ([-1] * (300 - n), [0.0] * (300 - n)), "none")


def test_backends_select_alike(cli):
    traces = []
    for backend in ("cpu", "ref"):
        record(cli, "mla_dsa", "--backend", backend, "--slots", "100")
        traces.append(read(cli.folder / "recorded.safetensors")[1])
    cli.same(traces[0], traces[1], "selections")


def test_bad_options(cli):
    usual = ("--model", model(cli, "mla_dsa"), "--prompt", "x")
    cli.golden("help_trace_record", "trace", "record", "--help")
    for words, says in ((usual, "which trace is to be made?"), (("a", "b", *usual), "'b' is a word too many"),
                        (("a", "--prompt", "x"), "--model is needed"), (("no/such/folder", *usual), "cannot write 'no/such/folder'")):
        r = cli.run("trace", "record", *words)
        cli.same((r.code, r.out), (2, ""), str(words))
        assert says in r.err, r.err
    for architecture, n, says in (("gqa_nsa", "8", "--next: candidates of NSA's selector are not ranked"),
                                  ("mla_dsa", "65536", "--next is '65536'; it may be 0..65535")):
        r = cli.run("trace", "record", "a", "--model", model(cli, architecture), "--prompt", "x", "--next", n)
        cli.same((r.code, r.out), (2, ""), f"--next {n}")
        assert says in r.err, r.err


def test_interrupt_leaves_whole_steps(cli):
    (cli.folder / "stopped.safetensors").unlink(missing_ok=True)
    process = cli.start("trace", "record", "stopped.safetensors", "--model", model(cli, "mla_dsa"), "--prompt", "x", "--ignore-eos",
                        "--max-tokens", "500", "--context", "510")
    process.stdout.buffer.read(3)  # bytes: what a model with random weights says is no text
    process.send_signal(signal.SIGINT)
    process.stdout.buffer.read()
    process.wait(timeout=60)
    if process.returncode == 0:
        return  # it was faster than the signal
    cli.same(process.returncode, 130, "exit code")
    metadata, tensors = read(cli.folder / "stopped.safetensors")
    cli.same(tensors["selections"][0][0], int(metadata["steps"]), "steps")
    cli.same(cli.run("trace", "info", "stopped.safetensors").code, 0, "exit code of info")
