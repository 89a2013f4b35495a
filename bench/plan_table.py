#!/usr/bin/env python3
"""Put what `hisparse plan` says beside published ratios into docs/planning.md. usage: plan_table.py HISPARSE

The published rates are of HiSparse, arXiv 2608.07009; `same` is how `hisparse plan` is asked for all of them.
"""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "planning.md")
BEGIN, END = "<!-- made by bench/plan_table.py -->", "<!-- end -->"

SAME = "--kv-format bf16 --slots 4096 --pools slabs --utilization 0.9 --reserve-gib 0"
QWEN = "--model qwen3-30b-a3b --machine gh200 --gpus 1 --weight-bits 16"
GLM = "--model glm-5.1 --machine h200 --gpus 8 --tp 1 --requests 256"
STUDY = "--model glm-5.2 --machine h200 --gpus 8 --tp 1 --requests 128 --context 40960 --output 8192"
FLASH = "--model deepseek-v4-flash --machine b200 --gpus 2 --tp 1 --requests 64"
# What, options, published tokens/s with everything on the GPU and with slots, whether 20% is claimed.
PUBLISHED = [
    ("Qwen3-30B, 4K", QWEN + " --context 4096", 2430, 2668, True),
    ("Qwen3-30B, 32K", QWEN + " --context 32768", 511, 1824, False),
    ("Qwen3-30B, 200K", QWEN + " --context 204800", 111, 520, True),
    ("GLM-5.1, 4K", GLM + " --context 4096 --output 2048", 2288, 2280, True),
    ("GLM-5.1, 32K", GLM + " --context 32768 --output 8192", 624, 1919, True),
    ("GLM-5.1, 160K", GLM + " --context 163840 --output 8192", 232, 680, True),
    ("GLM-5.2, fetch when needed", STUDY + " --layer-by-layer", 618, 1515, True),
    ("GLM-5.2, followers prefetched", STUDY, 618, 1727, True),
    ("GLM-5.2, no bytes moved", STUDY + " --miss-rate 0", 618, 2034, True),
    ("DeepSeek-V4-Flash, 32K + 8K", FLASH + " --context 40960 --output 8192", 600, 1257, False),
]


def plan(hisparse, options):
    done = subprocess.run([hisparse, "plan", "--json"] + options.split(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["rows"]


def rows(hisparse):
    """What, published ratio, ours, deviation in percent, both answers, whether 20% is claimed, options."""
    for what, options, resident, sparse, claimed in PUBLISHED:
        answers = plan(hisparse, SAME + " " + options)
        ours = answers[1]["rate_tokens_s"] / answers[0]["rate_tokens_s"]
        yield what, sparse / resident, ours, 100 * (ours * resident / sparse - 1), answers, claimed, options


def table(hisparse):
    lines = ["| | published tokens/s | ratio | requests here | tokens/s here | ratio | deviation |", "|---|---|---|---|---|---|---|"]
    for (what, theirs, ours, off, answers, _, _), (_, _, a, b, _) in zip(rows(hisparse), PUBLISHED):
        lines.append("| %s | %d, %d | %.2f | %d, %d | %d, %d | %.2f | %+.0f%% |" % (
            what, a, b, theirs, answers[0]["requests"], answers[1]["requests"], answers[0]["rate_tokens_s"],
            answers[1]["rate_tokens_s"], ours, off))
    commands = ["- %s: `%s`" % (what, options) for what, options, _, _, _ in PUBLISHED]
    return "\n".join(lines) + "\n\nEach row: `hisparse plan %s` and\n\n" % SAME + "\n".join(commands)


def page(hisparse):
    text = open(PAGE, encoding="utf-8").read()
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + table(hisparse) + "\n" + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    made = page(sys.argv[1])
    open(PAGE, "w", encoding="utf-8").write(made)
