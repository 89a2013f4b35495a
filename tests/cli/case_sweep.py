# SPDX-License-Identifier: Apache-2.0
"""`hisparse sweep`: counts that were reviewed, options, predictions, a recommendation, Ctrl-C. That the counts are a cache's
is tests/engine/test_sweep.c."""
import json
import lzma
import signal
import time
from pathlib import Path

from traces import imported, npy, npz, pattern

TRACES = Path(__file__).resolve().parent.parent.parent / "bench" / "traces"
POLICIES = ["lru", "fifo", "random", "clock", "lru-flat", "segmented", "belady"]


def sweep(cli, *words):
    r = cli.run("sweep", *words)
    cli.same((r.code, r.err), (0, ""), f"sweep {words}")
    return r


def refused(cli, *words, says):
    r = cli.run("sweep", *words)
    cli.same((r.code, r.out), (2, ""), f"exit code and output of {words}")
    assert says in r.err, f"{says!r} is not in {r.err!r}"


def test_counts(cli):
    """Every policy and size over one trace: nothing may change these numbers but a change of rules."""
    imported(cli, "golden", pattern(100, 2, 32, 1500), (100, 2, 32), "--layers", "3,7", "--row-bytes", "656")
    cli.golden("sweep_counts", "sweep", "golden.safetensors", "--csv", "--by-layer")


def test_real_traces(cli):
    """What trained models selected, in little: nothing may change these numbers but a change of rules."""
    for name in ("dsa", "nsa", "quest"):
        with lzma.open(TRACES / f"look-{name}.safetensors.xz") as packed:
            (cli.folder / f"look-{name}.safetensors").write_bytes(packed.read())
        k = {"dsa": 512, "nsa": 1024, "quest": 2048}[name]
        cli.golden(f"sweep_look_{name}", "sweep", f"look-{name}.safetensors", "--csv", "--by-layer", "--slots", f"{k},{2 * k},{4 * k}")


def test_defaults(cli):
    imported(cli, "default", pattern(30, 3, 16, 400), (30, 3, 16))
    rows = sweep(cli, "default.safetensors", "--json").json()["rows"]
    cli.same([(r["policy"], r["slots"]) for r in rows], [(p, 16 * i) for p in sorted(POLICIES, key=POLICIES.index) for i in range(1, 9)])
    for r in rows:
        assert r["slots_mb"] is None and r["fetched_bytes_a_token"] is None and r["swap_in_us_a_step"] is None, r
        assert r["p50_a_step"] <= r["p99_a_step"] <= 48 and 0 < r["missed_percent"] <= 100, r
    best = {r["slots"]: r["misses"] for r in rows if r["policy"] == "belady"}
    assert all(r["misses"] >= best[r["slots"]] for r in rows), rows


def test_sizes(cli):
    imported(cli, "sizes", pattern(20, 2, 8, 100), (20, 2, 8), "--row-bytes", "1024")
    rows = sweep(cli, "sizes.safetensors", "--json", "--policies", "belady,lru", "--mb", "1,0.03125,0.03125").json()["rows"]
    cli.same([(r["policy"], r["slots"], r["slots_mb"]) for r in rows],
             [(p, n, mb) for p in ("lru", "belady") for n, mb in ((16, 0.03125), (512, 1.0))])
    for r in rows:
        assert abs(r["fetched_bytes_a_token"] - r["misses"] * 1024 / 20) < 1, r
    rows = sweep(cli, "sizes.safetensors", "--json", "--slots", "9,8", "--policies", "fifo").json()["rows"]
    cli.same([r["slots"] for r in rows], [8, 9], "slots")


def test_threads_do_not_matter(cli):
    imported(cli, "threads", pattern(50, 3, 16, 900), (50, 3, 16))
    one, two = (sweep(cli, "threads.safetensors", "--csv", "--by-layer", "--threads", n).out for n in "13")
    cli.same(one, two, "rows")


def test_several_traces(cli):
    """Counts add up, and steps stand side by side."""
    imported(cli, "first", pattern(40, 2, 16, 500), (40, 2, 16))
    imported(cli, "second", pattern(10, 2, 16, 300), (10, 2, 16))
    one, two, both = (sweep(cli, *files, "--json").json()["rows"] for files in (
        ["first.safetensors"], ["second.safetensors"], ["first.safetensors", "second.safetensors"]))
    for a, b, c in zip(one, two, both):
        cli.same(a["misses"] + b["misses"], c["misses"], "misses")
    imported(cli, "other", pattern(10, 3, 16, 300), (10, 3, 16))
    refused(cli, "first.safetensors", "other.safetensors", says="other.safetensors has 3 layers and k 16")


def test_requests_and_gaps(cli):
    """Two requests, of which the second comes later: its steps before that ask for nothing."""
    numbers = [0, 1, -1, -1, 0, 1, 2, 3, 2, 3, 2, 3]
    npz(cli.folder / "gap.npz", selections=npy(numbers, (3, 1, 2, 2)), lengths=npy([9, 0, 9, 9, 9, 9], (3, 2)))
    cli.same(cli.run("trace", "import", "gap.npz", "gap.safetensors").code, 0, "import")
    row = sweep(cli, "gap.safetensors", "--json", "--slots", "2", "--policies", "lru", "--row-bytes", "100").json()["rows"][0]
    cli.same((row["misses"], row["missed_percent"], row["fetched_bytes_a_token"]), (6, 60.0, 120.0), "row")


def test_recommendation(cli):
    imported(cli, "advice", pattern(60, 2, 32, 3000), (60, 2, 32), "--row-bytes", "656")
    out = sweep(cli, "advice.safetensors").out
    assert "\nTake n_slots " in out and " and policy " in out and "No policy could miss less than" in out, out
    out = sweep(cli, "advice.safetensors", "--slots", "32", "--policies", "lru").out
    assert "It is the largest size of this sweep" in out and "No policy could" not in out, out


def test_profile(cli):
    """us a step: 2 layers of the least of 'request' less its rows, and the rows at the rate of the nearest 'read'."""
    imported(cli, "profile", pattern(10, 2, 8, 100), (10, 2, 8), "--row-bytes", "656")
    rows = [dict(what="read", rows=100, row_bytes=656, span_mib=64, time_us=9.0, swept_us=10.0),
            dict(what="read", rows=100, row_bytes=512, span_mib=64, time_us=1.0, swept_us=1.0),
            dict(what="read", rows=100, row_bytes=656, span_mib=4096, time_us=99.0, swept_us=99.0),
            dict(what="request", rows=20, row_bytes=656, span_mib=64, time_us=7.0),
            dict(what="request", rows=20, row_bytes=656, span_mib=64, time_us=5.0), dict(what="launch", time_us=0.5)]
    (cli.folder / "machine.json").write_text(json.dumps({"format": 1, "measured": {"rows": rows}}))
    row = sweep(cli, "profile.safetensors", "--json", "--slots", "8", "--policies", "lru", "--profile", "machine.json").json()["rows"][0]
    assert abs(row["swap_in_us_a_step"] - (2 * 3 + row["misses"] / 10 * 0.1)) < 1e-4, row
    for text, says in (("{", "line 1"), ("{}", "has no rows"), ('{"measured": {"rows": [{"what": "read", "rows": 0}]}}', "has no rows")):
        (cli.folder / "bad.json").write_text(text)
        refused(cli, "profile.safetensors", "--profile", "bad.json", says=says)
    refused(cli, "profile.safetensors", "--profile", "nowhere.json", says="nowhere.json")


def test_bad_options(cli):
    imported(cli, "few", pattern(4, 1, 8, 100), (4, 1, 8))
    cli.golden("sweep_no_trace", "sweep")
    cli.golden("sweep_misspelt_policy", "sweep", "few.safetensors", "--policies", "lru,belody")
    cli.golden("sweep_few_slots", "sweep", "few.safetensors", "--slots", "7,16")
    cli.golden("sweep_no_row_bytes", "sweep", "few.safetensors", "--mb", "64")
    cli.golden("sweep_two_forms", "sweep", "few.safetensors", "--json", "--csv")
    cli.golden("sweep_unwritable", "sweep", "few.safetensors", "--output", "no/such/folder/x")
    refused(cli, "few.safetensors", "--mb", "0.001", "--row-bytes", "656", says="the least size is 1 slots")
    refused(cli, "few.npy", says="few.npy: offset 0")


def test_interrupt_keeps_results(cli):
    imported(cli, "long", pattern(1500, 8, 256, 9000), (1500, 8, 256))
    process = cli.start("sweep", "long.safetensors", "--json", "--slots", ",".join(str(512 * i) for i in range(1, 33)))
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    cli.same((process.returncode, err), (130, ""), "exit code")
    result = json.loads(out)
    assert result["note"].startswith("stopped") and len(result["rows"]) == 7 * 32, result["note"]
    assert all(row["p99_a_step"] is None for row in result["rows"]), result["rows"][0]


def test_output_is_whole_or_not_there(cli):
    imported(cli, "out", pattern(4, 1, 8, 100), (4, 1, 8))
    sweep(cli, "out.safetensors", "--csv", "--output", "out.csv")
    cli.same((cli.folder / "out.csv").read_text(), sweep(cli, "out.safetensors", "--csv").out, "file")
