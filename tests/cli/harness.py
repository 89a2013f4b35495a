# SPDX-License-Identifier: Apache-2.0
"""Run the command and look at what a user sees; TAP out."""
import json
import os
import signal
import subprocess
import tempfile
import traceback
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "cli"
PATIENCE_S = 120  # a hang is a failure, not a wait


class Skip(Exception):
    """A test that does not apply here; the text says why."""


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)


class Cli:
    def __init__(self, command, update):
        self.command, self.update = command, update
        self.folder = Path(tempfile.mkdtemp(prefix="hisparse-cli-"))

    def environment(self, **extra):
        # Help is laid out for the terminal, and knobs come from HISPARSE_*: neither may reach a test by accident.
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HISPARSE_", "ARGP_"))}
        return clean | {"LC_ALL": "C", "COLUMNS": "80"} | extra

    def start(self, *words, stdout=subprocess.PIPE, **extra):
        return subprocess.Popen([self.command, *words], stdin=subprocess.DEVNULL, stdout=stdout,
                                stderr=subprocess.PIPE, text=True, env=self.environment(**extra), cwd=self.folder)

    def run(self, *words, stdout=subprocess.PIPE, **extra):
        process = self.start(*words, stdout=stdout, **extra)
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Result(process.returncode, out or "", err)

    def interrupt(self, process, after_line):
        """Ctrl-C once the process has printed a line; its first line is part of the result."""
        first = process.stdout.readline() if after_line else ""
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        return Result(process.returncode, first + out, err)

    def same(self, got, want, what="value"):
        assert got == want, f"{what}: {got!r}, expected {want!r}"

    def golden(self, name, *words):
        """The command line, its exit code and all it prints must be what was reviewed."""
        r = self.run(*words)
        text = f"$ hisparse {' '.join(words)}\n[{r.code}]\n{r.out}{r.err and '--- stderr' + chr(10)}{r.err}"
        path = GOLDEN / f"{name}.txt"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.same(text, path.read_text() if path.exists() else None, str(path.name))


class Tap:
    def __init__(self):
        self.count = self.failed = 0

    def line(self, ok, name, tail=""):
        self.count += 1
        self.failed += not ok
        print(f"{'ok' if ok else 'not ok'} {self.count} - {name}{tail}", flush=True)

    def run(self, name, test, cli):
        try:
            test(cli)
            self.line(True, name)
        except Skip as reason:
            self.line(True, name, f" # SKIP {reason}")
        except Exception:  # a broken test must not hide those after it
            self.line(False, name)
            for text in traceback.format_exc().splitlines():
                print(f"# {text}")
