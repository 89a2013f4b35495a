#!/usr/bin/env python3
"""Documents against the tree, in TAP: paths and links that exist, examples that run, generated pages, a table of test
names. usage: test_docs.py BUILD_DIR"""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


def documents():
    names = [n for n in os.listdir(ROOT) if n.endswith(".md")]
    return names + [os.path.join("docs", n) for n in os.listdir(os.path.join(ROOT, "docs")) if n.endswith(".md")]


def dead_paths():
    """Paths in backticks and targets of links that are not in the tree; build/ and .cache/ are made."""
    dead = []
    for name in documents():
        text, folder = read(name), os.path.dirname(os.path.join(ROOT, name))
        for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text):
            if not path.startswith(("build/", ".cache/")) and not os.path.exists(os.path.join(ROOT, path)):
                dead.append("%s: %s" % (name, path))
        for path in re.findall(r"\]\(([^)#:]+)\)", text):
            if not os.path.exists(os.path.join(folder, path)):
                dead.append("%s: %s" % (name, path))
    return dead


def missing_tests():
    """Names of tests that docs/testing.md gives for a case and no test has."""
    sources = ""
    for folder, _, names in os.walk(os.path.join(ROOT, "tests")):
        for name in names:
            if name.endswith(".c"):
                sources += read(os.path.relpath(os.path.join(folder, name), ROOT))
    named = re.findall(r"`([a-z_]+)`", read("docs", "testing.md").split("## Cases")[1])
    return [name for name in named if not re.search(r"\bvoid %s\(" % name, sources)]


def example(build, name, *want):
    done = subprocess.run([os.path.join(build, "bin", "example_" + name)], stdout=subprocess.PIPE)
    text = done.stdout.decode()
    return [] if done.returncode == 0 and all(w in text for w in want) else [text or "exit %d" % done.returncode]


def readme_code():
    """The C of the README is what examples/hello.c does: every line of it stands there."""
    block = re.search(r"```c\n(.*?)```", read("README.md"), re.S).group(1)
    have = re.sub(r"\s+", " ", read("examples", "hello.c"))
    return [line for line in block.splitlines() if line.strip() and re.sub(r"\s+", " ", line.strip()) not in have]


def measured():
    """The pages that hold measurements are what bench/make_tables.py makes of bench/results."""
    sys.path.insert(0, os.path.join(ROOT, "bench"))
    from make_tables import pages
    return [os.path.relpath(path, ROOT) + ": run `make docs`" for path, text in pages().items() if read(path) != text]


def planned(build):
    """The ratios of docs/planning.md are what the command says today."""
    sys.path.insert(0, os.path.join(ROOT, "bench"))
    from plan_table import page
    return [] if page(os.path.join(build, "bin", "hisparse")) == read("docs", "planning.md") else ["docs/planning.md: run `make docs`"]


def generated(build):
    made = subprocess.run([os.path.join(build, "bin", "hisparse"), "info", "--markdown"], stdout=subprocess.PIPE)
    return [] if made.stdout.decode() == read("docs", "config.md") else ["docs/config.md: run `make docs`"]


def main():
    build = sys.argv[1]
    checks = [("paths in documents exist", dead_paths()), ("tests named for cases exist", missing_tests()),
              ("example hello runs", example(build, "hello", "token 999: row id 1 holds 999", "token -1: no row")),
              ("example decode_loop runs", example(build, "decode_loop", "20 steps")),
              ("README's C is examples/hello.c", readme_code()), ("tables are those of the results", measured())]
    if os.path.exists(os.path.join(build, "bin", "hisparse")):
        checks.append(("docs/config.md is up to date", generated(build)))
        checks.append(("docs/planning.md is up to date", planned(build)))
    for number, (what, bad) in enumerate(checks, 1):
        print("%s %d - %s" % ("not ok" if bad else "ok", number, what))
        for line in bad:
            print("# " + line)
    print("1..%d" % len(checks))
    return 1 if any(bad for _, bad in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
