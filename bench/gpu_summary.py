#!/usr/bin/env python3
"""Sum up what bench/gpu.sh ran so far, from `runs` and `logs` of its working folder, into OUT/summary.json.

usage: gpu_summary.py ROOT COMMIT_FILE OUT      exit code 1 when something failed
"""
import datetime
import json
import os
import re
import shutil
import subprocess
import sys


def driver_and_name():
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
        return [part.strip() for part in lines[0].split(",")]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return [None, None]


def sanitizer_errors(text):
    """Errors by the report's own sum; None when it came to none."""
    sums = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", text)
    return sum(int(a or b) for a, b in sums) if sums else None


def main():
    root, commit_file, out = sys.argv[1:4]
    sys.path.insert(0, os.path.join(root, "tests"))
    from run import count  # the same reading of TAP as `make test`
    driver, gpu = driver_and_name()
    with open(commit_file) as file:
        commit = file.read().strip()
    summary = {"commit": commit, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
               "driver": driver, "gpu": gpu, "tests": [], "sanitizers": [], "commands": []}
    bad = []
    with open("runs") as file:
        runs = [line.rstrip("\n").split("\t") for line in file]
    for kind, name, tool, code, seconds, log in runs:
        with open("logs/%s.txt" % log, errors="replace") as file:
            text = file.read()
        seconds, code = round(float(seconds), 1), int(code)
        passed, failed, skipped, _ = count(text)
        if kind == "test":
            failed = max(failed, int(code != 0), int(skipped > 0 and passed == 0))  # skipped here: there is no GPU
            summary["tests"].append({"name": name, "passed": passed, "failed": failed, "skipped": skipped,
                                     "seconds": seconds})
        elif kind == "sanitizer":
            errors = sanitizer_errors(text)
            failed = failed or errors != 0 or code != 0 or passed == 0
            summary["sanitizers"].append({"tool": tool, "program": name, "errors": errors, "passed": passed,
                                          "exit": code, "seconds": seconds})
        else:
            failed = code != 0
            summary["commands"].append({"name": name, "exit": code, "seconds": seconds})
        if failed:
            bad.append(log)
            shutil.copy("logs/%s.txt" % log, out)
    with open(os.path.join(out, "summary.json"), "w") as file:
        json.dump(summary, file, indent=1)
        file.write("\n")
    print("failed: " + ", ".join(bad) if bad else "nothing failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
