#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Train, evaluate and export on one GPU: run_all.sh DATA OUT SECONDS [MODELS [BASE]]
#
# look-quest trains first; then look-nsa and look-dsa, which begin from it, side by side, while look-quest is evaluated.
# MODELS: some of these instead of all ("look-nsa look-dsa"); BASE: the look-quest.safetensors to begin from, where
# look-quest itself is not among them. OUT gets models as soon as they are trained, then results.json and
# train.log.jsonl; everything is over SECONDS after the start.
# MODELS --profile: 20 steps of every kind of step of all models instead. TINY=--tiny: small shapes, on a CPU.
# MODELS and --measure FOLDER: nothing is trained; the models of FOLDER are measured, side by side.
set -u
data=$1 out=$2 total=$3
models=${4:-look-quest look-nsa look-dsa}
base=${5:-}
measured=${6:-}
tiny=${TINY:-}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=4

if [ "$models" = --profile ]; then
    for name in look-quest look-nsa look-dsa; do
        timeout -k 2 $((total - SECONDS)) python3 "$here/train.py" "$name" "$data" "$work" $((total - 8)) --profile $tiny &
    done
    wait
    exit
fi

# What is left for a model after others, in seconds: a seventh of all for evaluation, and some for the last step and results.
evaluation=$((total / 7))
training=$((total - evaluation - 20))
[ "$training" -lt 10 ] && training=10

one() { # NAME SECONDS
    local name=$1 seconds=$2 from=() end=$((SECONDS + $2))
    [ "$name" != look-quest ] && [ -n "$base" ] && from=(--base "$base")
    timeout -k 5 $((seconds + 20)) python3 "$here/train.py" "$name" "$data" "$work" "$seconds" "${from[@]}" $tiny ||
        if [ $((end - SECONDS)) -gt $((seconds / 2)) ]; then
            echo "$name: ended with $?, once more without compiled code"
            seconds=$((end - SECONDS))
            timeout -k 5 $((seconds + 20)) python3 "$here/train.py" "$name" "$data" "$work" "$seconds" "${from[@]}" --plain $tiny
        fi
    [ -f "$work/$name.safetensors" ] && cp "$work/$name.safetensors" "$out/"
}

measure() { # NAME: evaluation looks at the clock between documents, so it gets less than what is left
    local left=$((total - SECONDS - 6))
    [ -f "$work/$1.safetensors" ] || return
    timeout -k 2 $left python3 "$here/evaluate.py" "$1" "$data" "$work" $((left - 15 < evaluation ? left - 15 : evaluation)) $tiny ||
        echo "$1: evaluation ended with $?"
}

if [ "$base" = --measure ]; then
    evaluation=$total
    for name in $models; do
        cp "$measured/$name.safetensors" "$work/" && measure "$name" &
    done
    wait
    python3 "$here/results.py" "$work" "$out" "$total" "$SECONDS" "$models" --measure
    exit
fi

rest=${models//look-quest/}
if [ "$rest" != "$models" ]; then
    # With the others to come, as long as each of the two would have alone.
    set -- $rest
    one look-quest $((training / (1 + $#)))
    [ -f "$work/look-quest.safetensors" ] && base=$work/look-quest.safetensors
    measure look-quest &
fi
left=$((training - SECONDS))
for name in $rest; do
    { one "$name" "$left" && measure "$name"; } &
done
wait
python3 "$here/results.py" "$work" "$out" "$total" "$SECONDS" "$models"
ls -l "$out"
