# SPDX-License-Identifier: Apache-2.0
"""Tests of the `hisparse` command. usage: test_cli.py BUILD_DIR [--update] [WORD]

Every function test_* of every case_*.py beside this file is one test, called with a harness.Cli. WORD runs only those with
WORD in their name. --update rewrites the reviewed texts in tests/golden/cli.
"""
import importlib
import shutil
import sys
from pathlib import Path

from harness import Cli, Tap


def cases():
    for path in sorted(Path(__file__).resolve().parent.glob("case_*.py")):
        module = importlib.import_module(path.stem)
        for name, test in vars(module).items():
            if name.startswith("test_"):
                yield f"{path.stem[5:]}: {name[5:].replace('_', ' ')}", test


def main():
    words = [w for w in sys.argv[1:] if w != "--update"]
    if not words:
        sys.exit(__doc__)
    cli, tap = Cli(str(Path(words[0]).resolve() / "bin" / "hisparse"), "--update" in sys.argv), Tap()
    for name, test in cases():
        if len(words) < 2 or words[1] in name:
            tap.run(name, test, cli)
    shutil.rmtree(cli.folder, ignore_errors=True)
    print(f"1..{tap.count}")
    return 1 if tap.failed or not tap.count else 0


if __name__ == "__main__":
    sys.exit(main())
