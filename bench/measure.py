#!/usr/bin/env python3
"""Measure this machine: the demo and the swap-in benches, as JSON in bench/results/.

usage: measure.py HISPARSE MODEL TEXT
"""
import datetime
import json
import os
import platform
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode()


def machine():
    with open("/proc/cpuinfo") as file:
        models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return "%s, %d cores, %s" % (models[0] if models else platform.machine(), os.cpu_count(), platform.system())


def main():
    hisparse, model, text = sys.argv[1:]
    commit = output("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    if output("git", "-C", ROOT, "status", "--porcelain", "--", "src", "ops", "engine", "tools", "include").strip():
        sys.exit("measure.py: sources differ from the commit; commit first, so that numbers have a commit")
    commands = {
        "demo": ["run", "--model", model, "--prompt-file", text, "--top-k", "1024", "--slots", "2048", "--max-tokens", "64",
                 "--ignore-eos", "--verify", "--json"],
        "swap_in": ["bench", "swap-in", "--json"],
        "sweep_context": ["bench", "swap-in", "--sweep-context", "--json"],
    }
    results = {"machine": machine(), "commit": commit, "date": datetime.date.today().isoformat(),
               "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    for name, arguments in commands.items():
        results[name] = {"command": "hisparse " + " ".join(arguments), "result": json.loads(output(hisparse, *arguments))}
    os.makedirs(os.path.join(ROOT, "bench", "results"), exist_ok=True)
    path = os.path.join(ROOT, "bench", "results", "cpu-%s-%s.json" % (results["date"], commit))
    with open(path, "w") as file:
        json.dump(results, file, indent=1)
        file.write("\n")
    print(path)


if __name__ == "__main__":
    main()
