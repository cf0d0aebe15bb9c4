#!/usr/bin/env bash
# Formats the sources; with --check it changes nothing and fails when something would change.
#
# usage: scripts/format.sh [--check]
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; }
case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  "" | --check) ;;
  *) echo "format.sh: error: unknown option $1" >&2; exit 2 ;;
esac
tool=$(command -v clang-format-14 || command -v clang-format)
mapfile -t files < <(git ls-files 'apps/*.cc' 'apps/*.h' 'lib/*.cc' 'lib/*.h' 'tests/*.cc' 'tests/*.h')
if [ "${1:-}" = --check ]; then
  "$tool" --dry-run --Werror "${files[@]}"
else
  "$tool" -i "${files[@]}"
fi
