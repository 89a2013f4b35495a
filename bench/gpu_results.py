#!/usr/bin/env python3
"""Put the measurements of a GPU run together as make_tables.py reads them.

usage: gpu_results.py FOLDER COMMIT OUT.json
       gpu_results.py ops COMMIT OUT.json FILE...     lines of bench_ops_gpu_*, each a JSON object
       gpu_results.py path COMMIT OUT.json FILE...    what `hisparse bench decode-path --json` wrote

FOLDER holds what `hisparse bench swap-in --backend cuda --json` wrote: floor.json, short.json, rows.json, slots.json and
context<N>.json; and, where they were run beside it, sglang.json (bench/peers/sglang.py) and prototype.txt and
prototype_same_rows.txt (the floor program of the design notes as it stands, and with a trace that replaces no new token).
"""
import datetime
import glob
import json
import os
import re
import subprocess
import sys

PROTOTYPE = re.compile(r"B +(\d+) ctx +(\d+) miss +([\d.]+)% .*?noIO ([\d.]+) us, with IO ([\d.]+) us \(S(\d+)\)")
FIELDS = ("batch", "context", "miss_percent", "resolve_us", "swap_in_us", "cluster")


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        name, driver = [part.strip() for part in subprocess.run(query, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()[0].split(",")]
        return "one %s, driver %s, %d cores" % (name, driver, os.cpu_count())
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return "unknown GPU, %d cores" % os.cpu_count()


def prototype(path):
    with open(path) as file:
        found = PROTOTYPE.findall(file.read())
    return {"command": "swap_in_floor", "rows": [dict(zip(FIELDS, (int(b), int(c), float(m), float(r), float(s), int(k)))) for b, c, m, r, s, k in found]}


def write(results, out):
    with open(out, "w") as file:
        json.dump(results, file, indent=1)


def lines_of(paths):
    """Programs by name, with the objects they printed."""
    programs = {}
    for path in paths:
        with open(path) as file:
            programs[os.path.splitext(os.path.basename(path))[0]] = [json.loads(line) for line in file if line.startswith("{")]
    return programs


def main():
    folder, commit, out = sys.argv[1:4]
    now = datetime.datetime.now(datetime.timezone.utc)
    results = {"machine": machine(), "commit": commit, "date": now.strftime("%Y-%m-%d"), "time": now.strftime("%Y-%m-%dT%H:%M:%S+00:00")}
    if folder == "ops":
        write(dict(results, **lines_of(sys.argv[4:])), out)
        return
    if folder == "path":
        write(dict(results, path=[json.load(open(path)) for path in sys.argv[4:]]), out)
        return
    for name in ("floor", "short", "rows", "slots"):
        with open(os.path.join(folder, name + ".json")) as file:
            results[name] = json.load(file)
    contexts = glob.glob(os.path.join(folder, "context*.json"))
    results["contexts"] = [json.load(open(path)) for path in sorted(contexts, key=lambda p: int(re.search(r"context(\d+)", p).group(1)))]
    peer = os.path.join(folder, "sglang.json")
    if os.path.exists(peer):
        with open(peer) as file:
            results["sglang"] = {"command": "python3 bench/peers/sglang.py sglang.json", "rows": [json.loads(line) for line in file]}
    for name in ("prototype", "prototype_same_rows"):
        path = os.path.join(folder, name + ".txt")
        if os.path.exists(path):
            results[name] = prototype(path)
    write(results, out)


if __name__ == "__main__":
    main()
