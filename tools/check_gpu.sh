#!/usr/bin/env bash
# Everything that needs a GPU, several parts at a time: tests, sanitizers, speeds. Logs go to the folder given (default: gpu-checks).
#   tools/check_gpu.sh [FOLDER]
set -u
cd "$(dirname "$0")/.."
logs=${1:-gpu-checks}
mkdir -p "$logs"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
python=${PYTHON:-python3}

part() {  # part NAME SECONDS COMMAND...: run in the background, log, and say how it ended
    local name=$1 limit=$2
    shift 2
    (
        timeout "$limit" "$@" >"$logs/$name.txt" 2>&1
        echo "$name: exit $?: $(grep -vE '^\s*$' "$logs/$name.txt" | tail -n 1)"
    ) &
}

tests() { part "$1" "$2" "$python" -m pytest -o addopts=--import-mode=importlib -q --tb=short --durations=3 "${@:3}"; }
sanitize() {
    part "$1" "$2" compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 3 \
        "$python" -m ddtree.cli.run models/kimi_tiny.yaml -p "def f(" -n "$3" --device cuda
}

"$python" -m ddtree.cli.run models/kimi_tiny.yaml -p "def fibonacci(n):" -n 64 -v --device cuda   # also fills the compile cache
tests generation 300 tests/gpu/test_generation.py
tests requests 300 tests/gpu/test_requests.py -m "not slow"
tests loop 300 tests/gpu/test_loop.py
tests auto 300 tests/gpu/test_auto.py
tests ops 300 tests/gpu/test_ops.py tests/emulator/test_gpu_parity.py
for step in prefill draft verify commit; do tests "shapes-$step" 500 tests/gpu/test_rank_shapes.py -k "$step"; done
wait
sanitize memcheck 120 8
sanitize racecheck 170 4
sanitize synccheck 120 8
wait
tests soak 200 tests/gpu/test_requests.py -m slow
wait
tests group 300 tests/gpu/test_group.py
wait
tests stream 300 tests/gpu/test_stream.py
wait
tests rank-step 200 tests/gpu/test_rank_step.py   # 79 GB of weights, hence alone
wait
"$python" -m ddtree.cli.bench step models/kimi_k26.yaml --tp 8 -q | tee "$logs/rank-step.txt"
"$python" -m ddtree.cli.bench generate models/kimi_tiny.yaml --prompts tests/data/kimi_tiny_greedy.json -q | tee "$logs/speed.md"
