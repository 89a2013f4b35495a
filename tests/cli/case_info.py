# SPDX-License-Identifier: Apache-2.0
"""`hisparse info`: complete, and the same in every form."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def table_keys():
    return re.findall(r'^KNOB\("(\w+)"', (ROOT / "src/config_table.h").read_text(), re.M)


def test_json_lists_every_knob(cli):
    info = cli.run("info", "--json").json()
    cli.same([k["key"] for k in info["knobs"]], table_keys(), "knobs")
    for knob in info["knobs"]:
        cli.same(sorted(knob), ["bounds", "default", "help", "key", "type", "unit"], "fields of a knob")
        assert knob["help"] and knob["bounds"] and knob["type"] in ("int", "text", "choice", "list"), knob


def test_json_lists_backends(cli):
    info = cli.run("info", "--json").json()
    backends = {b["name"]: b for b in info["backends"]}
    for name in ("cpu", "ref"):
        assert backends[name]["runs"] is True and backends[name]["detail"], backends
    assert "threads" in backends["cpu"]["can"], backends
    assert info["ops_target"] in ("avx512", "avx2", "baseline"), info["ops_target"]
    cli.same(info["version"], (ROOT / "VERSION").read_text().strip(), "version")


def test_text_lists_backends(cli):
    lines = cli.run("info").out.split("Backends\n")[1].split("\n\n")[0].splitlines()
    backends = cli.run("info", "--json").json()["backends"]
    cli.same(len(lines), len(backends), "backends")
    for line, b in zip(lines, backends):
        start = f"  {b['name']:<8} {'runs' if b['runs'] else 'cannot run'} here: {b['detail']}"
        assert line.startswith(start) and (b["runs"] or line == start), (line, start)


def test_text_lists_every_knob(cli):
    r = cli.run("info")
    cli.same(r.code, 0, "exit code")
    for key in table_keys():
        assert re.search(rf"^  {key} ", r.out, re.M), key


def test_page_is_the_one_in_docs(cli):
    cli.same(cli.run("info", "--markdown").out, (ROOT / "docs/config.md").read_text(), "docs/config.md")


def test_one_form_at_a_time(cli):
    cli.golden("info_two_forms", "info", "--json", "--markdown")
