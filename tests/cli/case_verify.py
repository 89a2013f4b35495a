# SPDX-License-Identifier: Apache-2.0
"""`hisparse verify`: rounds, seeds, bounds, Ctrl-C."""
import re


def test_a_few_rounds(cli):
    r = cli.run("verify", "--seed", "7", "--runs", "5")
    cli.same(r.code, 0, "exit code")
    assert r.out.startswith("cpu against ref, seed 7\n5 rounds, "), r.out
    assert r.out.endswith(": no difference\n"), r.out
    cli.same(r.err, "", "stderr")


def test_ref_against_itself(cli):
    cli.same(cli.run("verify", "--backend", "ref", "--against", "ref", "--runs", "3").code, 0, "exit code")


def test_a_seed_repeats(cli):
    words = ("verify", "--seed", "11", "--runs", "4", "--json")
    first, second = cli.run(*words).json()["rows"][0], cli.run(*words).json()["rows"][0]
    for field in ("rounds", "operations", "rows", "difference", "seed"):
        cli.same(first[field], second[field], field)


def test_json(cli):
    r = cli.run("verify", "--seed", "3", "--runs", "2", "--json")
    result = r.json()
    for field in ("what", "command", "version", "machine", "commit", "date", "rows"):
        assert field in result, field
    row = result["rows"][0]
    cli.same((row["backend"], row["against"], row["seed"], row["rounds"], row["difference"]), ("cpu", "ref", 3, 2, ""))
    assert row["operations"] > 0 and row["rows"] > 0 and row["seconds"] >= 0, row
    assert "seed 3" in r.err, "the seed must be known even when the run is killed"


def test_drawn_seed_is_said(cli):
    r = cli.run("verify", "--runs", "1")
    assert re.match(r"cpu against ref, seed \d+\n", r.out), r.out


def test_bounds(cli):
    cli.golden("verify_no_runs", "verify", "--runs", "0")
    cli.golden("verify_negative_minutes", "verify", "--minutes", "-1")
    cli.golden("verify_not_a_number", "verify", "--seed", "12x")
    cli.golden("verify_huge_seed", "verify", "--seed", "99999999999999999999")


def test_unknown_backend(cli):
    # Not a golden text: which backends there are depends on the build.
    names = [b["name"] for b in cli.run("info", "--json").json()["backends"]]
    for words in (("verify", "--backend", "tpu"), ("verify", "--against", "tpu"), ("bench", "swap-in", "--backend", "tpu")):
        r = cli.run(*words)
        cli.same((r.code, r.out), (2, ""), str(words))
        cli.same(r.err, f"hisparse: there is no backend 'tpu'; there are {', '.join(names)}\n", str(words))


def test_backends_that_cannot_run(cli):
    for backend in cli.run("info", "--json").json()["backends"]:
        if not backend["runs"]:
            r = cli.run("verify", "--backend", backend["name"])
            cli.same((r.code, r.out), (2, ""), backend["name"])
            cli.same(r.err, f"hisparse: backend '{backend['name']}' cannot run here: {backend['detail']}\n")


def test_time_limit(cli):
    cli.same(cli.run("verify", "--minutes", "0.01").code, 0, "exit code")


def test_interrupt_keeps_results(cli):
    r = cli.interrupt(cli.start("verify", "--minutes", "10"), after_line=True)
    cli.same(r.code, 130, "exit code")
    assert re.search(r"\n\d+ rounds, \d+ operations, \d+ rows compared, [\d.]+ s", r.out), r.out
