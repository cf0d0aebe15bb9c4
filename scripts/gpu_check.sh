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
    generator=()
    if command -v ninja >/dev/null && [ ! -e "$build/CMakeCache.txt" ]; then generator=(-G Ninja); fi
    cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DOSCAR_CUDA=ON \
      -DOSCAR_TORCH=OFF -DOSCAR_KERNELS_ONLY=ON | tail -5
    targets=(gpu_test gpu_golden_test gpu_bench cuda_test cuda_golden_test)
    # The verifier needs some packages more; without them the kernels are checked alone.
    if cmake --build "$build" --target help | grep -q verify_test; then
      targets+=(oscar-verify verify_test)
    else
      echo "gpu_check.sh: Eigen, zlib or CLI11 is missing: without oscar-verify"
    fi
    cmake --build "$build" --target "${targets[@]}" -j "$(nproc)" 2>&1 | tee "$out/build.log" | tail -3
    # ptxas 13.0 encodes a hinted cp.async whose address has a uniform register as an illegal
    # instruction (CopyOnce).
    if ! command -v cuobjdump >/dev/null; then
      echo "gpu_check.sh: cuobjdump is missing: hinted copies are not checked"
    else
      cuobjdump -sass "$tests/gpu_test" > "$out/gpu_test.sass"
      copies=$(grep -cE 'LDGSTS\.E' "$out/gpu_test.sass" || true)
      wrong=$(grep -cE 'LDGSTS\.E[^[]*\[[^],]*UR' "$out/gpu_test.sass" || true)
      rm "$out/gpu_test.sass"
      if [ "$copies" -eq 0 ] || [ "$wrong" -ne 0 ]; then
        echo "gpu_check.sh: error: $wrong of $copies copies have a uniform register in their address" >&2
        exit 1
      fi
    fi
    ;;
  test)
    need "$tests/gpu_test"
    need "$tests/gpu_golden_test"
    # Shards share the device; their references are computed on the CPU and take most of the time.
    shards=$(nproc)
    for ((i = 0; i < shards; ++i)); do
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$tests/gpu_test" > "$out/test-$i.log" 2>&1 &
      pids[i]=$!
    done
    "$tests/gpu_golden_test" > "$out/test-golden.log" 2>&1 &
    pids[shards]=$!
    if [ -x "$tests/verify_test" ]; then
      "$tests/verify_test" --gtest_filter='KernelVerifyTest.*' > "$out/test-verify.log" 2>&1 &
      pids[shards + 1]=$!
    fi
    failed=0
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    cat "$out"/test-*.log > "$out/test.log"
    rm -f "$out"/test-*.log
    grep -E "^\[ +(OK|FAILED|SKIPPED) +\] [A-Z]" "$out/test.log" | sort | uniq
    if grep -qE "^\[ +SKIPPED +\]" "$out/test.log"; then
      echo "gpu_check.sh: error: tests were skipped: they need a GPU of compute capability 9.0" >&2
      failed=1
    fi
    exit "$failed"
    ;;
  sanitize)
    need "$tests/gpu_test"
    need "$tests/gpu_golden_test"
    # Contexts of some thousands of tokens: the tools slow the kernels a hundredfold.
    decode="DecodeGpu.ContextLengths:DecodeGpu.Shapes:DecodeGpu.EveryByte*:DecodeGpu.SplitsDoNotMatter"
    decode+=":DecodeGpu.ValueRotation:DecodeGpu.HardRows:DecodeGpu.FewHeads:DecodeGpu.SumsOf*"
    memory="$decode:DecodeGpu.GroupsAndScaleTypes:DecodeGpu.SettledCaches*:DecodeGpu.SlotOrders:DecodeGpu.OneHot*"
    write="WriteGpu.*"
    # check NAME TOOL PROGRAM FILTER: the tool's report goes to NAME.log; side by side.
    check() {
      timeout 500 compute-sanitizer --tool "$2" --error-exitcode 9 "$tests/$3" --gtest_filter="$4" \
          > "$out/$1.log" 2>&1 &
      names+=("$1") pids+=($!)
    }
    names=() pids=()
    check memcheck_decode memcheck gpu_test "$memory"
    check memcheck_write memcheck gpu_test "$write:RoundTripGpu.*"
    check memcheck_golden memcheck gpu_golden_test "*"
    check racecheck_write racecheck gpu_test "$write"
    check racecheck_decode racecheck gpu_test "$decode"
    failed=0
    for i in "${!pids[@]}"; do
      status=0
      wait "${pids[i]}" || status=$?
      echo "${names[i]}: exit code $status, $(tail -1 "$out/${names[i]}.log")"
      # Waits at barriers in shared memory, on which the decode kernel rests, are not understood by
      # racecheck (docs/cuda.md): its report is kept and does not fail the stage.
      if [ "$status" -ne 0 ] && ! { [ "${names[i]}" = racecheck_decode ] && [ "$status" -eq 9 ]; }; then
        failed=1
      fi
    done
    exit "$failed"
    ;;
  bench)
    need "$tests/gpu_bench"
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv > "$out/device.csv" || true
    above=0
    "$tests/gpu_bench" | tee "$out/bench.jsonl" || above=$?
    if [ -x "$build/bin/oscar-verify" ]; then
      "$build/bin/oscar-verify" bench --force --report "$out/verify-bench.json" | tee "$out/verify-bench.txt"
    fi
    exit "$above"
    ;;
  *)
    echo "gpu_check.sh: error: --stage build, test, sanitize or bench" >&2
    exit 2
    ;;
esac
