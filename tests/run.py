#!/usr/bin/env python3
"""Run every test of a build and print one line: N passed, N failed, N skipped.

usage: run.py BUILD_DIR [NAME ...]     with names, only programs whose name contains one of them

Programs of cmocka and the scripts here report in TAP; a program that ends badly without a report counts as a failure.
"""
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TAP = re.compile(r"^(not ok|ok) \d+\b(.*)$")
LIMIT_SECONDS = 900


def loads_into_python(build):
    """A library with a sanitizer in it ends every program that was not built with one."""
    with open(os.path.join(build, "lib", "libhisparse_ops.so"), "rb") as file:
        image = file.read()
    return b"__asan_init" not in image and b"__tsan_init" not in image


def programs(build):
    """Name and command of everything there is to run."""
    bin_dir = os.path.join(build, "bin")
    found = [(name, [os.path.join(bin_dir, name)]) for name in sorted(os.listdir(bin_dir)) if name.startswith("test_")]
    for target in ("gguf", "safetensors", "trace", "tokenizer", "api"):
        replay = os.path.join(bin_dir, "replay_" + target)
        if os.path.exists(replay):
            found.append(("replay_" + target, [replay, os.path.join(HERE, "fuzz", "corpus", target)]))
    for script in ("cli/test_cli.py", "cli/test_run.py", "cli/test_run_small.py", "cli/test_score.py", "cli/test_accuracy.py", "abi/test_abi.py", "abi/test_install.py", "abi/test_probes.py", "docs/test_docs.py", "cuda/test_registers.py"):
        has_command = os.path.exists(os.path.join(bin_dir, "hisparse"))
        if os.path.exists(os.path.join(HERE, script)) and (has_command or "cli" not in script):
            found.append((script, [sys.executable, os.path.join(HERE, script), build]))
    for script in sorted(glob.glob(os.path.join(HERE, "ops", "reference_*.py"))) if loads_into_python(build) else ():
        found.append((os.path.relpath(script, HERE), [sys.executable, script, build]))
    return found


def count(text):
    """passed, failed, skipped of a TAP report, and the lines of what failed."""
    passed = failed = skipped = 0
    bad = []
    for line in text.splitlines():
        match = TAP.match(line)
        if not match:
            continue
        if "# SKIP" in line.upper() or line.endswith("# SKIP"):
            skipped += 1
        elif match.group(1) == "ok":
            passed += 1
        else:
            failed += 1
            bad.append(line)
    return passed, failed, skipped, bad


def run(name, command, cwd):
    start = time.time()
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP")
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=LIMIT_SECONDS)
        text, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        text, code = (late.stdout or b"").decode(errors="replace") + "\ntoo slow\n", -1
    passed, failed, skipped, bad = count(text)
    if passed + failed + skipped == 0 and code == 0:
        passed = 1
    if code != 0 and failed == 0:
        failed, bad = 1, ["exit code %d" % code]
    return name, passed, failed, skipped, bad, text, time.time() - start


def main():
    build, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    jobs = [p for p in programs(build) if not wanted or any(w in p[0] for w in wanted)]
    total = [0, 0, 0]
    with tempfile.TemporaryDirectory(dir=build) as cwd, \
            concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 2) as pool:
        for job in concurrent.futures.as_completed([pool.submit(run, n, c, cwd) for n, c in jobs]):
            name, passed, failed, skipped, bad, text, seconds = job.result()
            for i, n in enumerate((passed, failed, skipped)):
                total[i] += n
            print("%-28s %4d passed %3d failed %3d skipped  %6.1f s" % (name, passed, failed, skipped, seconds))
            if failed:
                print("\n".join("    " + line for line in bad))
                print("\n".join("    | " + line for line in text.splitlines()[-40:]))
            sys.stdout.flush()
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
