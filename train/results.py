#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gather what training and evaluation left: results.py WORK OUT LIMIT SECONDS MODELS [--measure]. Writes OUT/results.json and
OUT/train.log.jsonl."""
import hashlib
import json
import pathlib
import sys
import time


def read(path):
    return json.loads(path.read_text()) if path.exists() else None


def main():
    work, out = map(pathlib.Path, sys.argv[1:3])
    measured = " --measure FOLDER" if sys.argv[6:] else ""
    results = {"command": f"train/run_all.sh DATA OUT {sys.argv[3]} '{sys.argv[5]}'{measured}", "seconds": int(sys.argv[4]),
               "date": time.strftime("%Y-%m-%d", time.gmtime()), "models": {}}
    lines = []
    for name in sorted(sys.argv[5].split()):
        model = out / f"{name}.safetensors"
        entry = {"training": read(work / f"{name}.train.json"), "evaluation": read(work / f"{name}.eval.json")}
        if model.exists():
            entry |= {"bytes": model.stat().st_size, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()}
        results["models"][name] = entry
        log = work / f"{name}.log.jsonl"
        lines += log.read_text().splitlines() if log.exists() else []
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "train.log.jsonl").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
