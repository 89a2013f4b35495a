# SPDX-License-Identifier: Apache-2.0
"""The command itself: help, version, misuse, and an output that cannot be written."""
import os
import re
from pathlib import Path

from harness import Skip

ROOT = Path(__file__).resolve().parent.parent.parent


def test_help(cli):
    cli.golden("help", "--help")


def test_version(cli):
    cli.golden("version", "--version")


def test_no_command(cli):
    cli.golden("no_command")


def test_misspelt_command(cli):
    cli.golden("misspelt_command", "verfy")
    cli.golden("misspelt_bench", "bnech")
    cli.golden("unknown_command", "bogus")
    cli.golden("misspelt_swap_in", "bench", "swapin")
    cli.golden("unknown_bench", "bench", "swap-out")
    cli.golden("no_bench", "bench")


def test_unknown_option(cli):
    cli.golden("unknown_option", "--verbose")
    cli.golden("unknown_info_option", "info", "--jsn")
    cli.golden("unknown_verify_option", "verify", "--foo")
    cli.golden("stray_word", "verify", "cpu")


def test_help_of_commands(cli):
    for command in ("run", "score", "info", "verify", "bench", "calibrate", "plan", "sweep"):
        cli.golden(f"help_{command}", command, "--help")
    cli.golden("help_bench_swap_in", "bench", "swap-in", "--help")
    cli.golden("help_bench_decode_path", "bench", "decode-path", "--help")


def test_manual_has_every_option_of_run(cli):
    manual = (ROOT / "man/hisparse.1").read_text().replace("\\-", "-").split(".SH OPTIONS OF RUN")[1].split(".SH")[0]
    in_manual = re.findall(r"^\.TP\n\.BI? (--[a-z-]+)", manual, re.M)
    in_help = re.findall(r"^      (--[a-z-]+)", cli.run("run", "--help").out, re.M)
    cli.same(sorted(in_manual), sorted(o for o in in_help if o != "--usage"), "options")


def test_full_disk(cli):
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full")
    for words in (["--help"], ["--version"], ["info"], ["info", "--json"], ["verify", "--help"],
                  ["verify", "--runs", "1"]):
        with open("/dev/full", "w") as full:
            r = cli.run(*words, stdout=full)
        cli.same(r.code, 3, f"exit code of {words}")
        assert "cannot write the output: No space left on device" in r.err, r.err


def test_closed_pipe(cli):
    for words in (["--help"], ["info", "--json"], ["verify", "--runs", "2"]):
        reader, writer = os.pipe()
        os.close(reader)
        r = cli.run(*words, stdout=writer)
        os.close(writer)
        cli.same(r.code, 3, f"exit code of {words}")
        assert "cannot write the output" in r.err, r.err
