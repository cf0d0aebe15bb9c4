#!/usr/bin/env bash
# Builds, tests, sanitizes or times the CUDA kernels on a machine with a Hopper GPU; each stage takes
# less than nine minutes and leaves its results in one folder (docs/cuda.md says what is in it).
#
# usage: scripts/gpu_check.sh --stage build|test|sanitize|verify|bench|steps [--out DIR] [--build-dir DIR]
#
#   build     kernels, tests and oscar-verify; in DIR-race the tests for racecheck, and in DIR-torch an
#             oscar-verify with LibTorch where that is found with its CUDA part (.deps,
#             CMAKE_PREFIX_PATH or python3's torch)
#   test      the tests of the kernels
#   sanitize  compute-sanitizer on them
#   verify    oscar-verify on all layers of a made-up model (scripts/verify_kernels.sh)
#   bench     gpu_bench, and the grid of oscar-verify bench
#   steps     decode steps of whole models; needs the oscar-verify with LibTorch
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; }
stage="" out="" build=build/gpu
while [ $# -gt 0 ]; do
  case "$1" in -h | --help) usage; exit 0 ;; esac
  [ $# -gt 1 ] || { echo "gpu_check.sh: error: $1 has no value or is unknown" >&2; exit 2; }
  case "$1" in
    --stage) stage=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --build-dir) build=$2; shift 2 ;;
    *) echo "gpu_check.sh: error: unknown argument $1" >&2; exit 2 ;;
  esac
done
case "$stage" in
  build | test | sanitize | verify | bench | steps) ;;
  *) echo "gpu_check.sh: error: --stage build, test, sanitize, verify, bench or steps" >&2; exit 2 ;;
esac
out=${out:-results/gpu-$stage}
mkdir -p "$out"
tests=$build/tests
need() { [ -x "$1" ] || { echo "gpu_check.sh: error: $1 is missing: run --stage build first" >&2; exit 2; }; }

# configure DIR OPTION...: kernels and what belongs to them.
configure() {
  local folder=$1 generator=()
  shift
  if command -v ninja >/dev/null && [ ! -e "$folder/CMakeCache.txt" ]; then generator=(-G Ninja); fi
  cmake -S . -B "$folder" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DOSCAR_CUDA=ON \
    -DOSCAR_KERNELS_ONLY=ON "$@"
}

# The folder of a LibTorch with its CUDA part; nothing where there is none.
torch_folder() {
  local folder prefixes
  local find='import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")'
  IFS=: read -r -a prefixes <<< "$PWD/.deps/torch/torch:${CMAKE_PREFIX_PATH:-}:$(python3 -c "$find" || true)"
  for folder in "${prefixes[@]}"; do
    if [ -e "$folder/lib/libtorch_cuda.so" ]; then echo "$folder"; return; fi
  done
}

# build_torch FOLDER: the oscar-verify that the benchmark takes, with the LibTorch of FOLDER.
build_torch() {
  configure "$build-torch" -DOSCAR_TORCH=ON -DOSCAR_TORCH_CUDA=ON -DOSCAR_BUILD_TESTS=OFF \
    -DCMAKE_PREFIX_PATH="$1" && cmake --build "$build-torch" --target oscar-verify -j "$(nproc)"
}

# ptxas 13.0 encodes a hinted cp.async whose address has a uniform register as an illegal
# instruction (CopyOnce).
check_copies() {
  if ! command -v cuobjdump >/dev/null; then
    echo "gpu_check.sh: cuobjdump is missing: hinted copies are not checked"
    return
  fi
  local copies wrong
  cuobjdump -sass "$tests/gpu_test" > "$out/gpu_test.sass"
  copies=$(grep -cE 'LDGSTS\.E' "$out/gpu_test.sass" || true)
  wrong=$(grep -cE 'LDGSTS\.E[^[]*\[[^],]*UR' "$out/gpu_test.sass" || true)
  rm "$out/gpu_test.sass"
  if [ "$copies" -eq 0 ] || [ "$wrong" -ne 0 ]; then
    echo "gpu_check.sh: error: $wrong of $copies copies have a uniform register in their address" >&2
    return 1
  fi
}

# The oscar-verify with LibTorch, else the one without.
bench_program() {
  if [ -x "$build-torch/bin/oscar-verify" ]; then
    echo "$build-torch/bin/oscar-verify"
  else
    echo "$build/bin/oscar-verify"
  fi
}

case "$stage" in
  build)
    failed=0 torch=""
    rm -f "$build-torch/bin/oscar-verify"  # none rather than an old one
    configure "$build" -DOSCAR_TORCH=OFF | tail -5
    configure "$build-race" -DOSCAR_TORCH=OFF -DOSCAR_RACECHECK=ON > "$out/build-race.log"
    targets=(gpu_test gpu_golden_test gpu_bench cuda_test cuda_golden_test)
    # The verifier needs some packages more; without them the kernels are checked alone.
    there=$(cmake --build "$build" --target help)
    if [[ $there == *verify_test* ]]; then
      targets+=(oscar-verify verify_test)
      torch=$(torch_folder)
      if [ -n "$torch" ]; then
        build_torch "$torch" > "$out/build-torch.log" 2>&1 &
        torch_build=$!
      else
        echo "gpu_check.sh: no LibTorch with its CUDA part is found: without PyTorch's columns and --stage steps"
      fi
    else
      echo "gpu_check.sh: Eigen, zlib or CLI11 is missing: without oscar-verify"
    fi
    if [[ $there == *synthetic_traces* ]]; then
      targets+=(oscar-calibrate synthetic_traces)
    else
      echo "gpu_check.sh: LAPACKE or OpenBLAS is missing: without --stage verify"
    fi
    cmake --build "$build" --target "${targets[@]}" -j "$(nproc)" 2>&1 | tee "$out/build.log" |
      tail -3 || failed=1
    if ! cmake --build "$build-race" --target gpu_test -j "$(nproc)" >> "$out/build-race.log" 2>&1; then
      tail -5 "$out/build-race.log"
      echo "gpu_check.sh: error: gpu_test does not build for racecheck: see $out/build-race.log" >&2
      failed=1
    fi
    if [ -n "$torch" ] && ! wait "$torch_build"; then
      tail -5 "$out/build-torch.log"
      echo "gpu_check.sh: error: oscar-verify does not build with $torch: see $out/build-torch.log" >&2
      failed=1
    fi
    check_copies || failed=1
    exit "$failed"
    ;;
  test)
    need "$tests/gpu_test"
    need "$tests/gpu_golden_test"
    rm -f "$out"/test-*.log
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
    else
      echo "gpu_check.sh: $tests/verify_test is missing: without the tests of the verifier"
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
    need "$build-race/tests/gpu_test"
    need "$tests/gpu_golden_test"
    # Contexts of some thousands of tokens: the tools slow the kernels a hundredfold.
    decode="DecodeGpu.ContextLengths:DecodeGpu.Shapes:DecodeGpu.EveryByte*:DecodeGpu.ValueRotation"
    decode+=":DecodeGpu.HardRows:DecodeGpu.SumsOf*"
    memory="$decode:DecodeGpu.FewHeads:DecodeGpu.SplitsDoNotMatter:DecodeGpu.GroupsAndScaleTypes:DecodeGpu.SettledCaches*"
    memory+=":DecodeGpu.SlotOrders:DecodeGpu.OneHot*:DecodeGpu.NaN*"
    write="WriteGpu.*"
    # check NAME TOOL PROGRAM FILTER SHARDS: side by side, as are the tests of a filter, in at most so
    # many shards: the tools take one without a test for a failure.
    rm -f "$out"/sanitize-*.log
    names=() pids=()
    check() {
      local shard shards=$5 tests
      tests=$("$3" --gtest_list_tests --gtest_filter="$4" | grep -c '^  ' || true)
      [ "$tests" -gt 0 ] || { echo "gpu_check.sh: error: $3 has no test of $4" >&2; exit 1; }
      if [ "$tests" -lt "$shards" ]; then shards=$tests; fi
      for ((shard = 0; shard < shards; ++shard)); do
        GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout 500 compute-sanitizer --tool "$2" \
          --error-exitcode 9 "$3" --gtest_filter="$4" > "$out/sanitize-$1-$shard.log" 2>&1 &
        names+=("$1-$shard") pids+=($!)
      done
    }
    check memcheck-decode memcheck "$tests/gpu_test" "$memory" 4
    check memcheck-write memcheck "$tests/gpu_test" "$write:RoundTripGpu.*" 1
    check memcheck-golden memcheck "$tests/gpu_golden_test" "*" 1
    check racecheck-write racecheck "$tests/gpu_test" "$write" 1
    # Racecheck does not follow the barriers that the decode kernels otherwise wait at, nor pieces
    # that go round the ring again and again (docs/cuda.md).
    check racecheck-decode racecheck "$build-race/tests/gpu_test" "$decode" 7
    failed=0
    for i in "${!pids[@]}"; do
      status=0
      wait "${pids[i]}" || status=$?
      echo "${names[i]}: exit code $status, $(tail -1 "$out/sanitize-${names[i]}.log")"
      # Racecheck counts warnings apart, and nothing says that they change its exit code.
      if [ "$status" -ne 0 ] || ! tail -1 "$out/sanitize-${names[i]}.log" | grep -qE ": 0 (errors|hazards)"; then
        failed=1
      fi
    done
    tail -n +1 "$out"/sanitize-*.log > "$out/sanitize.log"
    rm "$out"/sanitize-*.log
    exit "$failed"
    ;;
  verify)
    scripts/verify_kernels.sh --device cuda --build-dir "$build" --out "$out/verifier"
    ;;
  bench)
    need "$tests/gpu_bench"
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv > "$out/device.csv" || true
    above=0
    "$tests/gpu_bench" | tee "$out/bench.jsonl" || above=$?
    if [ -x "$(bench_program)" ]; then
      mkdir -p "$out/verifier"
      "$(bench_program)" bench --batch 1 8 32 64 --context 8K 32K 100K --force \
        --report "$out/verifier/grid.json" 2>&1 | tee "$out/verifier/grid.txt"
    else
      echo "gpu_check.sh: oscar-verify is missing: without the grid"
    fi
    exit "$above"
    ;;
  steps)
    need "$build-torch/bin/oscar-verify"
    mkdir -p "$out/verifier"
    steps=("$build-torch/bin/oscar-verify" bench --shape qwen3-4b qwen3-8b --no-grid --whole-model --force)
    "${steps[@]}" --batch 1 8 32 --step-context 100K 2>&1 | tee "$out/steps_100K.txt"
    "${steps[@]}" --report "$out/verifier/steps.json" 2>&1 | tee "$out/verifier/steps.txt"
    ;;
esac
