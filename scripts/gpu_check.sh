#!/usr/bin/env bash
# Builds, tests, sanitizes or times the CUDA kernels on a machine with a Hopper GPU; each stage takes
# less than nine minutes and leaves its results in one folder.
#
# usage: scripts/gpu_check.sh --stage build|test|sanitize|bench [--out DIR] [--build-dir DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
stage="" out="" build=build/gpu
while [ $# -gt 0 ]; do
  case "$1" in
    --stage) stage=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --build-dir) build=$2; shift 2 ;;
    *) echo "gpu_check.sh: error: unknown argument $1" >&2; exit 2 ;;
  esac
done
out=${out:-results/gpu-$stage}
mkdir -p "$out"
tests=$build/tests
need() { [ -x "$1" ] || { echo "gpu_check.sh: error: $1 is missing: run --stage build first" >&2; exit 2; }; }

case "$stage" in
  build)
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DOSCAR_CUDA=ON -DOSCAR_TORCH=OFF | tail -5
    cmake --build "$build" --target gpu_test gpu_bench cuda_test -j "$(nproc)" 2>&1 | tee "$out/build.log" | tail -3
    ;;
  test)
    need "$tests/gpu_test"
    # Shards share the device; their references are computed on the CPU and take most of the time.
    shards=$(nproc)
    for ((i = 0; i < shards; ++i)); do
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$tests/gpu_test" > "$out/test-$i.log" 2>&1 &
      pids[i]=$!
    done
    failed=0
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    cat "$out"/test-*.log > "$out/test.log"
    rm -f "$out"/test-*.log
    grep -E "^\[ +(OK|FAILED|SKIPPED) +\] [A-Z]" "$out/test.log" | sort | uniq
    exit "$failed"
    ;;
  sanitize)
    need "$tests/gpu_test"
    # Small cases: the tools slow the kernels a hundredfold.
    filter="DecodeGpu.EveryByte*:DecodeGpu.SplitsDoNotMatter:DecodeGpu.ValueRotation:WriteGpu.Scale*:WriteGpu.Flush*"
    failed=0
    for tool in memcheck racecheck; do
      timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests/gpu_test" \
          --gtest_filter="$filter" > "$out/$tool.log" 2>&1 || failed=1
      tail -2 "$out/$tool.log"
    done
    exit "$failed"
    ;;
  bench)
    need "$tests/gpu_bench"
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv > "$out/device.csv" || true
    "$tests/gpu_bench" | tee "$out/bench.jsonl"
    ;;
  *)
    echo "gpu_check.sh: error: --stage build, test, sanitize or bench" >&2
    exit 2
    ;;
esac
