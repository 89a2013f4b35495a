# SPDX-License-Identifier: Apache-2.0
"""`hisparse bench`: tiny sizes; forms, files, bounds. Numbers are for people, so only their presence is looked at."""
import csv
import io
import json
import os
import stat
import time

from harness import Skip

TINY = ("bench", "swap-in", "--k", "64", "--slots", "128", "--context", "1024", "--row-bytes", "64", "--seconds", "0")
FIELDS = ["miss_percent", "steps", "rows", "resolve_us", "resolve_p99_us", "swap_in_us", "swap_in_p99_us", "fetch_us",
          "gather_us", "gather_p99_us", "of_gather_percent", "fetch_rate_gb_s", "gather_rate_gb_s"]


def check_json(cli, result, n_rows):
    for field in ("what", "command", "version", "machine", "commit", "date", "rows"):
        assert field in result, field
    cli.same(sorted(result["machine"]), ["compiler", "cores", "cpu"], "machine")
    cli.same(len(result["rows"]), n_rows, "rows")


def test_json(cli):
    result = cli.run(*TINY, "--json").json()
    check_json(cli, result, 8)
    assert result["command"].startswith("hisparse bench swap-in --k 64"), result["command"]
    for row in result["rows"]:
        cli.same(list(row), FIELDS, "fields")
        assert abs(row["rows"] - round(64 * row["miss_percent"] / 100)) < 0.01, row
        assert row["resolve_us"] > 0 and row["swap_in_us"] > 0, row


def test_csv(cli):
    rows = list(csv.reader(io.StringIO(cli.run(*TINY, "--csv").out)))
    cli.same(rows[0], FIELDS, "header")
    cli.same(len(rows), 9, "lines")


def test_text(cli):
    r = cli.run(*TINY, "--misses", "0,50")
    cli.same(r.code, 0, "exit code")
    lines = r.out.splitlines()
    assert lines[0].endswith("--misses 0,50") and lines[1].startswith("hisparse "), r.out
    cli.same(len(lines), 7, "lines")


def test_backends_policies_and_batches(cli):
    for extra in (("--backend", "ref"), ("--policy", "fifo"), ("--policy", "clock"), ("--policy", "random"),
                  ("--batch", "3", "--threads", "2"), ("--huge-pages",)):
        r = cli.run(*TINY, "--misses", "0,25,100", "--json", *extra)
        cli.same((r.code, r.err), (0, ""), str(extra))
        check_json(cli, r.json(), 3)


def test_sweep(cli):
    r = cli.run("bench", "swap-in", "--sweep-context", "--k", "64", "--slots", "128", "--seconds", "0", "--json")
    check_json(cli, r.json(), 10)
    cli.same([row["context_tokens"] for row in r.json()["rows"]], [8192, 32768, 131072, 524288, 1048576] * 2, "contexts")


def test_output_file(cli):
    path = cli.folder / "result.json"
    cli.same(cli.run(*TINY, "--misses", "10", "--json", "--output", str(path)).code, 0, "exit code")
    check_json(cli, json.loads(path.read_text()), 1)
    cli.same([p.name for p in cli.folder.iterdir() if p.name.startswith("result")], ["result.json"], "files")


def test_unwritable_output(cli):
    cli.golden("bench_unwritable", *TINY, "--output", "no/such/folder/file")


def test_full_output(cli):
    # A node of our own: a command that wrongly replaced its output would take away the machine's /dev/full.
    node = cli.folder / "full"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        node.open("w").close()
    except OSError as error:
        raise Skip(f"cannot make a full device: {error}") from error
    r = cli.run(*TINY, "--misses", "10", "--output", str(node))
    cli.same(r.code, 3, "exit code")
    assert f"cannot write '{node}': No space left on device" in r.err, r.err
    assert stat.S_ISCHR(node.stat().st_mode), "the device was replaced"


def test_output_into_a_pipe(cli):
    node = cli.folder / "fifo"
    os.mkfifo(node)
    process = cli.start(*TINY, "--misses", "10", "--json", "--output", str(node))
    check_json(cli, json.loads(node.read_text()), 1)
    process.communicate()
    cli.same(process.returncode, 0, "exit code")
    assert stat.S_ISFIFO(node.stat().st_mode), "the pipe was replaced"


def test_bounds(cli):
    cli.golden("bench_no_k", "bench", "swap-in", "--k", "0")
    cli.golden("bench_misses_above_100", "bench", "swap-in", "--misses", "0,101")
    cli.golden("bench_misses_no_number", "bench", "swap-in", "--misses", "1,,2")
    cli.golden("bench_few_slots", "bench", "swap-in", "--k", "64", "--slots", "63")
    cli.golden("bench_short_context", "bench", "swap-in", "--k", "64", "--slots", "128", "--context", "255")
    cli.golden("bench_odd_row", *TINY, "--row-bytes", "63")
    cli.golden("bench_no_policy", *TINY, "--policy", "mru")
    cli.golden("bench_two_forms", *TINY, "--json", "--csv")


def test_smallest_context(cli):
    # Once there was no token left that could miss, and the bench looked for one for ever.
    r = cli.run("bench", "swap-in", "--k", "64", "--slots", "256", "--context", "576", "--row-bytes", "64", "--seconds",
                "0", "--misses", "73,100", "--json")
    for row in r.json()["rows"]:
        assert abs(row["rows"] - round(64 * row["miss_percent"] / 100)) < 0.01, row


def test_options_of_other_backends(cli):
    cli.golden("bench_cases_on_cpu", "bench", "swap-in", "--cases", "floor")
    cli.golden("bench_skew_on_cpu", "bench", "swap-in", "--skew")
    cli.golden("bench_layers_on_cpu", "bench", "swap-in", "--layers", "4")
    cli.golden("bench_two_batches", "bench", "swap-in", "--batch", "1,2")
    cli.golden("bench_half_a_row", "bench", "swap-in", "--row-bytes", "8.5")
    cli.golden("bench_misspelt_cases", "bench", "swap-in", "--cases", "flor")


def test_cuda_without_a_gpu(cli):
    r = cli.run("bench", "swap-in", "--backend", "cuda", "--context", "1", "--batch", "1")
    cli.same((r.code, r.out), (2, ""), "exit code and output")  # with a GPU: a context that is too short
    assert "cannot run here" in r.err or "--context is 1;" in r.err, r.err


def test_decode_path_bounds(cli):
    cli.golden("decode_path_no_group", "bench", "decode-path", "--group", "3")
    cli.golden("decode_path_half_a_group", "bench", "decode-path", "--group", "1.5")
    cli.golden("decode_path_rows_of_v4", "bench", "decode-path", "--row-bytes", "584")
    cli.golden("decode_path_misspelt_cases", "bench", "decode-path", "--cases", "ful")
    cli.golden("decode_path_few_slots", "bench", "decode-path", "--slots", "2000")
    cli.golden("decode_path_short_context", "bench", "decode-path", "--context", "10239")
    cli.golden("decode_path_many_rows", "bench", "decode-path", "--batch", "1024", "--context", "1000000")
    cli.golden("decode_path_many_anchors", "bench", "decode-path", "--model-layers", "20")
    cli.golden("decode_path_two_forms", "bench", "decode-path", "--json", "--csv")


def test_decode_path_without_a_gpu(cli):
    if any(b["name"] == "cuda" and b["runs"] for b in cli.run("info", "--json").json()["backends"]):
        raise Skip("there is a GPU")
    path = cli.folder / "decode_path.json"
    r = cli.run("bench", "decode-path", "--json", "--output", str(path))
    cli.same((r.code, r.out), (2, ""), "exit code and output")
    assert "backend 'cuda' cannot run here" in r.err or "there is no backend 'cuda'" in r.err, r.err
    assert not path.exists(), "a file without results"


def test_interrupt_keeps_results(cli):
    path = cli.folder / "partial.json"
    words = list(TINY[:-1]) + ["0.3", "--misses", "0" + ",0" * 31, "--json", "--output", str(path)]
    process = cli.start(*words)
    time.sleep(1.5)
    r = cli.interrupt(process, after_line=False)
    cli.same(r.code, 130, "exit code")
    rows = json.loads(path.read_text())["rows"]
    assert 1 <= len(rows) < 32, len(rows)



def test_profile(cli):
    path = cli.folder / "knobs.json"
    path.write_text(json.dumps({"format": 1, "choose": {"host_row_align": 64, "request_blocks": 8, "fetch_blocks": 8,
                                                        "pieces_in_flight": 2}}))
    check_json(cli, cli.run(*TINY, "--json", "--profile", str(path)).json(), 8)
    cli.golden("bench_no_profile", *TINY, "--profile", "no-such-profile")
