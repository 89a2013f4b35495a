#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Train, evaluate and export all three models on one GPU: run_all.sh DATA OUT SECONDS [--tiny]
#
# The three run side by side and share the GPU evenly: while one reads data, starts up, evaluates or launches small
# kernels, the others compute. OUT gets the models as soon
# as each is trained, then results.json and train.log.jsonl; everything is over SECONDS after the start.
set -u
data=$1 out=$2 total=$3
tiny=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4

evaluation=$((total / 6))
training=$((total - evaluation - 35)) # 35: two starts of Python, torch and CUDA, the last step, and the results
[ "$training" -lt 5 ] && training=5

one() {
    local left
    timeout -k 5 $((training + 45)) python3 "$here/train.py" "$1" "$data" "$work" "$training" $tiny || echo "$1: training ended with $?"
    [ -f "$work/$1.safetensors" ] || return
    cp "$work/$1.safetensors" "$out/"
    left=$((total - SECONDS - 6))
    # Evaluation looks at the clock between documents, so it gets less than what is left.
    timeout -k 2 $left python3 "$here/evaluate.py" "$1" "$data" "$work" $((left - 18 < evaluation ? left - 18 : evaluation)) $tiny ||
        echo "$1: evaluation ended with $?"
}

for name in look-dsa look-nsa look-quest; do
    one "$name" &
done
wait
python3 "$here/results.py" "$work" "$out" "$total" "$SECONDS"
ls -l "$out"
