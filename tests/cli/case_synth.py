# SPDX-License-Identifier: Apache-2.0
"""`hisparse trace synth`: as local as what was measured, the same for the same seed, and whole after Ctrl-C."""
import signal
import time

from traces import read


def synth(cli, name, *options):
    path = cli.folder / name
    path.unlink(missing_ok=True)
    r = cli.run("trace", "synth", name, *options)
    cli.same((r.code, r.out, r.err), (0, "", ""), f"synth {options}")
    return path


def test_longbench_has_the_published_miss_rates(cli):
    """GLM-5.1, k 2048, a prompt of 100,384 tokens, the first 1,000 steps: within one point, all six at once."""
    synth(cli, "longbench.safetensors", "--layers", "1")
    r = cli.run("sweep", "longbench.safetensors", "--json", "--slots", "2048,4096,8192", "--policies", "lru,random,fifo,belady")
    missed = {(row["policy"], row["slots"]): row["missed_percent"] for row in r.json()["rows"]}
    for case, want in {("lru", 2048): 30, ("lru", 4096): 13.4, ("random", 4096): 16.1, ("fifo", 4096): 17.2,
                       ("belady", 4096): 8.2, ("lru", 8192): 6.7}.items():
        assert abs(missed[case] - want) < 1, (case, missed[case], want)


def test_code_has_the_published_overlaps(cli):
    """DeepSeek-V3.2 over code: 1-2% of a selection was in the one before in layers 0 and 1, 35-50% later on."""
    synth(cli, "code.safetensors", "--preset", "code", "--layers", "5", "--steps", "40")
    repeated = [row["repeated_percent"] for row in cli.run("trace", "info", "code.safetensors", "--json").json()["rows"]]
    assert all(1 <= share <= 2.5 for share in repeated[:2]) and all(34 <= share <= 51 for share in repeated[2:]), repeated
    assert repeated[2] > repeated[3] > repeated[4], repeated


def test_counts(cli):
    """Reviewed numbers of a small one, layer by layer."""
    synth(cli, "small.safetensors", "--preset", "code", "--layers", "4", "--k", "64", "--context", "3000", "--steps", "200")
    cli.golden("sweep_synth_counts", "sweep", "small.safetensors", "--csv", "--by-layer")


def test_shape_and_seed(cli):
    options = ("--steps", "5", "--layers", "2", "--requests", "3", "--k", "8", "--context", "6", "--next", "4")
    metadata, tensors = read(synth(cli, "seed.safetensors", *options))
    cli.same(tensors["selections"][0], [5, 2, 3, 8], "shape")
    cli.same(tensors["next_scores"][0], [5, 2, 3, 4], "shape of the scores")
    cli.same(tensors["lengths"][1], [6 + s for s in range(5) for _ in range(3)], "lengths")
    cli.same((metadata["row_bytes"], metadata["k"], metadata["model"]), ("656", "8", "none: synth longbench"), "notes")
    for row in range(5 * 2 * 3):
        n = 6 + row // 6
        chosen, following = (tensors[t][1][row * w:row * w + w] for t, w in (("selections", 8), ("next_tokens", 4)))
        cli.same(sorted(t for t in chosen + following if t >= 0), list(range(n)), "all tokens, each once")
        assert chosen[:min(n, 8)] == sorted(chosen[:min(n, 8)]) and n - 1 in chosen, chosen
        scores = tensors["next_scores"][1][row * 4:row * 4 + max(0, n - 8)]
        cli.same(scores, sorted(scores, reverse=True), "scores")
    again, other = (read(synth(cli, "again.safetensors", *options, "--seed", seed))[1] for seed in "12")
    cli.same(again, tensors, "the same seed")
    assert other["selections"] != tensors["selections"], "another seed"


def test_bad_options(cli):
    cli.golden("help_trace_synth", "trace", "synth", "--help")
    cli.golden("synth_misspelt_preset", "trace", "synth", "x", "--preset", "longbnech")
    cli.golden("synth_long_context", "trace", "synth", "x", "--context", "4194000")
    cli.golden("synth_large_step", "trace", "synth", "x", "--layers", "65535", "--requests", "65535")


def test_interrupt_leaves_whole_steps(cli):
    (cli.folder / "cut-short.safetensors").unlink(missing_ok=True)
    process = cli.start("trace", "synth", "cut-short.safetensors", "--steps", "100000", "--context", "20000", "--k", "64")
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    cli.same(process.returncode, 130, "exit code")
    metadata, tensors = read(cli.folder / "cut-short.safetensors")
    cli.same(tensors["selections"][0], [int(metadata["steps"]), 4, 1, 64], "shape")
    assert 0 < int(metadata["steps"]) < 100000, metadata
    cli.same(cli.run("trace", "info", "cut-short.safetensors").code, 0, "exit code of info")
