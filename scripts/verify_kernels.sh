#!/usr/bin/env bash
# Verifies the CUDA kernels, or their CPU twins, on all layers of a made-up model: writes its traces,
# calibrates one entry with rotations per layer and one per KV head, and runs oscar-verify with
# several settings of the cache, the first at most positions and with tables by layer. Its texts and the
# record of the first stay in DIR (verify.txt, verify.json), in place of those of an earlier run.
#
# usage: scripts/verify_kernels.sh --out DIR [--build-dir DIR] [--device cuda|twin] [--layers N]
# Exit codes: 0 every gate passed, 1 one did not, 2 wrong usage or a program is missing, 3 a run failed.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; }
out="" build=build/release device=twin layers=28
while [ $# -gt 0 ]; do
  case "$1" in -h | --help) usage; exit 0 ;; esac
  [ $# -gt 1 ] || { echo "verify_kernels.sh: error: $1 has no value or is unknown" >&2; exit 2; }
  case "$1" in
    --out) out=$2; shift 2 ;;
    --build-dir) build=$2; shift 2 ;;
    --device) device=$2; shift 2 ;;
    --layers) layers=$2; shift 2 ;;
    *) echo "verify_kernels.sh: error: unknown argument $1" >&2; exit 2 ;;
  esac
done
[[ $layers =~ ^[1-9][0-9]*$ ]] || { echo "verify_kernels.sh: error: --layers $layers: expected a number above 0" >&2; exit 2; }
[ -n "$out" ] || { echo "verify_kernels.sh: error: --out is missing" >&2; exit 2; }
for program in bin/oscar-verify bin/oscar-calibrate tests/synthetic_traces; do
  [ ! -x "$build/$program" ] || continue
  echo "verify_kernels.sh: error: $build/$program is missing" >&2
  [ -e "$build/CMakeCache.txt" ] || echo "hint: first set $build up (cmake --preset release: build/release)" >&2
  echo "hint: cmake --build $build --target oscar-verify oscar-calibrate synthetic_traces" >&2
  exit 2
done
mkdir -p "$out"
inputs=$(mktemp -d "$build/verify-inputs.XXXXXX")
trap 'rm -rf "$inputs"' EXIT

# verify OPTION...: one run; its text goes to verify.txt, after its options. Rows of a made-up model
# say nothing of how good rotations are, so the gates are those on the kernels.
failed=0
verify() {
  local status=0
  echo "\$ oscar-verify --zoo layer head --traces held-out.trace.h5 --device $device --gates" \
    "configs/verify/agreement.json ${*//"$out/"/}" | tee -a "$out/verify.txt"
  "$build/bin/oscar-verify" --zoo "$inputs/layer" "$inputs/head" --traces "$inputs/held-out.trace.h5" \
    --device "$device" --gates configs/verify/agreement.json --progress never "$@" 2>&1 |
    tee -a "$out/verify.txt" || status=$?
  [ "$status" -le 1 ] || exit "$status"
  [ "$status" -eq 0 ] || failed=1
}

rm -f "$out/verify.txt" "$out/verify.json"
"$build/tests/synthetic_traces" "$inputs" "$layers" || exit 3
for grouping in layer head; do
  "$build/bin/oscar-calibrate" --traces "$inputs/calibration.trace.h5" --model-name synthetic \
    --clip 0.96,0.92 --grouping "$grouping" --out "$inputs/$grouping" --quiet >/dev/null || exit 3
done
verify --positions 64 --layers --report "$out/verify.json" --force
verify --positions 16 --windows off --scale-dtype f16
verify --positions 16 --group-size 32 --clip-mode bisect --flush 8
verify --positions 16 --windows off --group-size 64 --scale-dtype bf16
exit "$failed"
