#!/usr/bin/env bash
# Formats the sources; with --check it changes nothing and fails when something would change.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14 || command -v clang-format)
mapfile -t files < <(git ls-files 'apps/*.cc' 'apps/*.h' 'lib/*.cc' 'lib/*.h' 'tests/*.cc' 'tests/*.h')
if [ "${1:-}" = --check ]; then
  "$tool" --dry-run --Werror "${files[@]}"
else
  "$tool" -i "${files[@]}"
fi
