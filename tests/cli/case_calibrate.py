# SPDX-License-Identifier: Apache-2.0
"""`hisparse calibrate` without a GPU: a clear refusal, and no file. With one it is run by hand: it takes a minute."""
from harness import Skip


def has_gpu(cli):
    return any(b["name"] == "cuda" and b["runs"] for b in cli.run("info", "--json").json()["backends"])


def test_no_gpu(cli):
    if has_gpu(cli):
        raise Skip("there is a GPU")
    path = cli.folder / "profile.json"
    r = cli.run("calibrate", "--quick", "--output", str(path))
    cli.same((r.code, r.out), (2, ""), "exit code and output")
    assert r.err.startswith(("hisparse: calibrate: there is no GPU to measure: ", "hisparse: this build has no GPU part: ")), r.err
    cli.same([p.name for p in cli.folder.iterdir() if p.name.startswith("profile")], [], "files")


def test_bounds(cli):
    cli.golden("calibrate_no_span", "calibrate", "--span-gib", "0")
    cli.golden("calibrate_stray_word", "calibrate", "fast")
