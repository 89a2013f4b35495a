#!/usr/bin/env bash
# Everything that needs a GPU, in one call, from a bundle made elsewhere: the machine needs a driver, Python 3 and, for the
# sanitizers, compute-sanitizer.
#
# usage: bench/gpu.sh BUNDLE OUT [STAGE...]
#   BUNDLE: made by bench/gpu_bundle.sh. OUT: a folder for results.
#   STAGE: tests sanitize bench ops path calibrate verify; all of them when none is named.
#   VERIFY_MINUTES (2): how long verify runs.
#
# OUT/summary.json says what ran, what passed and how long it took, and is written anew after every stage. The output of a
# program is in OUT/NAME.txt when something in it failed; all of them are in OUT/logs.tar.gz, so that OUT has few files.
set -u
[ $# -ge 2 ] || { sed -n '5,8s/^# //p' "$0"; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd) bundle=$(realpath "$1") out=$2
[ -x "$bundle/bin/hisparse" ] || { echo "$1 is no bundle of bench/gpu_bundle.sh" >&2; exit 2; }
shift 2
stages=("$@")
[ $# -gt 0 ] || stages=(tests sanitize bench ops path calibrate verify)
for stage in "${stages[@]}"; do
  case $stage in tests | sanitize | bench | ops | path | calibrate | verify) ;; *) echo "no stage $stage" >&2; exit 2 ;; esac
done
mkdir -p "$out" && out=$(realpath "$out") && work=$(mktemp -d) && cd "$work" || exit 2
trap 'rm -rf "$work"' EXIT
mkdir logs && : >runs
export LD_LIBRARY_PATH=$bundle/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CMOCKA_MESSAGE_OUTPUT=TAP TESTS_GOLDEN=$bundle/share/recency.json

# one KIND NAME TOOL LIMIT COMMAND...: run it, keep its output, note how it ended. TOOL is - but for sanitizers.
one() {
  local kind=$1 name=$2 tool=$3 limit=$4 start=$EPOCHREALTIME code
  local log=$name
  [ "$tool" = - ] || log=$name-$tool
  shift 4
  timeout -k 5 "$limit" "$@" >"logs/$log.txt" 2>&1
  code=$?
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$kind" "$name" "$tool" "$code" "$(awk "BEGIN { print $EPOCHREALTIME - $start }")" "$log" >>runs
  echo "$kind $log: exit $code"
}

# Only the GPU's half of the tests: the rest runs anywhere. Those of selectors and attention are all of it.
run_tests() {
  for program in "$bundle"/bin/test_*; do
    local filter='* on cuda'
    case $program in */test_gpu_*) filter='*' ;; esac
    CMOCKA_TEST_FILTER=$filter one test "$(basename "$program")" - 180 "$program"
  done
}

# Selectors and attention: a JSON object a line and case, all in OUT/ops.json.
run_ops() {
  for program in "$bundle"/bin/bench_ops_gpu_*; do one command "$(basename "$program")" - 100 "$program"; done
  python3 "$root/bench/gpu_results.py" ops "$(cat "$bundle/commit")" "$out/ops.json" logs/bench_ops_gpu_*.txt || failed=1
}

# sanitize TOOL PROGRAM FILTER [ARGUMENT...]: small shapes, a few replays: a checked kernel takes some hundred times as long.
sanitize() {
  local tool=$1 program=$2 filter=$3
  shift 3
  CMOCKA_TEST_FILTER=$filter one sanitizer "$program" "$tool" 90 \
    compute-sanitizer --tool "$tool" --error-exitcode 99 "$bundle/bin/$program" "$@"
}

run_sanitize() {
  sanitize memcheck test_graph '* on cuda' 10
  sanitize memcheck test_selections '* on cuda'
  sanitize memcheck test_lifecycle 're* on cuda'
  for tool in racecheck synccheck; do
    sanitize "$tool" test_graph '* on cuda' 5
    sanitize "$tool" test_look_back 'two* on cuda' 1
    sanitize "$tool" test_selections 's* on cuda'
  done
}

# measure NAME OPTION...: one part of OUT/swap_in.json, which bench/gpu_results.py puts together for bench/results.
measure() {
  local name=$1
  shift
  one command "bench-$name" - 150 "$bundle/bin/hisparse" bench swap-in --backend cuda --json --output "bench/$name.json" "$@"
}

run_bench() {
  mkdir -p bench
  measure floor --cases floor --seconds 0.5
  measure short --cases short
  measure rows --batch 32 --misses 10 --row-bytes 512,576,584,656,1152,2048 --layers 4 --seconds 0.25
  measure slots --batch 8,32 --misses 5 --slots 2048,4096,8192 --layers 4 --seconds 0.25
  for context in 8192 32768 131072 1048576; do
    measure "context$context" --batch 1 --misses 0,5 --slots 2048 --layers 4 --context "$context" --seconds 0.25
  done
  python3 "$root/bench/gpu_results.py" bench "$(cat "$bundle/commit")" "$out/swap_in.json" || failed=1
}

# The decode path, row size by row size: a file has what was finished, also when its time was up.
run_path() {
  mkdir -p path
  for bytes in 656 1152; do
    one command "path-$bytes" - 280 "$bundle/bin/hisparse" bench decode-path --cases full --row-bytes "$bytes" --seconds 0.5 --json --output "path/$bytes.json"
  done
  python3 "$root/bench/gpu_results.py" path "$(cat "$bundle/commit")" "$out/decode_path.json" path/*.json || failed=1
}
run_calibrate() { one command calibrate - 200 "$bundle/bin/hisparse" calibrate --output "$out/calibrate.json"; }
run_verify() {
  local minutes=${VERIFY_MINUTES:-2}
  one command verify - $((${minutes%.*} * 60 + 90)) "$bundle/bin/hisparse" verify --backend cuda --minutes "$minutes" --json
}

failed=0
for stage in "${stages[@]}"; do
  "run_$stage"
  python3 "$root/bench/gpu_summary.py" "$root" "$bundle/commit" "$out" || failed=1
  tar -czf "$out/logs.tar.gz" -C logs .
done
exit $failed
