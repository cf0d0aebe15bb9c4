#!/usr/bin/env bash
# Sets up, builds and runs all tests. Arguments go to ctest, for example: -L golden
#
# usage: scripts/test.sh [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; }
case "${1:-}" in -h | --help) usage; exit 0 ;; esac
scripts/setup.sh --model
cmake --preset ci >/dev/null
cmake --build --preset ci
ctest --preset ci "$@"
