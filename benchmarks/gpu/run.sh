#!/usr/bin/env bash
# The CUDA kernels on a GPU: builds them, compares them with the CPU reference, and times them. Tensors of torch on a GPU:
# compares what ranks get with what they get on the CPU.
#
# usage: benchmarks/gpu/run.sh [--programs DIR] [--without-torch] [argument of benchmarks.gpu.report...]
#        benchmarks/gpu/run.sh --pack DIR
# --pack builds the programs and puts them into DIR with the libraries they need; --programs takes them from there, for a
# machine with a GPU and without the packages of scripts/setup.sh.
# Tensors of torch need the package sirtaki with its plug-in (pip install . -C cmake.define.SIRTAKI_CUDA=ON);
# --without-torch leaves that comparison out.
# Variables: PYTHON, the interpreter for the result file and for torch (default .venv's, else python3).
set -euo pipefail
cd "$(dirname "$0")/../.."

build=build/release
programs=
pack=
compare=yes
while :; do
  case "${1:-}" in
    --programs) programs=$(realpath "$2") && shift 2 ;;
    --pack) pack=$2 && shift 2 ;;
    --without-torch) compare= && shift ;;
    *) break ;;
  esac
done

# The driver's list of devices: nothing is built for a machine that cannot run it.
if [ -z "$pack" ] && ! nvidia-smi --list-gpus 2>/dev/null | grep -q '^GPU'; then
  echo "run: no GPU: nvidia-smi finds none here; --pack DIR builds the programs for a machine that has one" >&2
  exit 2
fi

python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v "${PYTHON:-python3}")
if [ -z "$pack" ] && [ -n "$compare" ] &&
  ! "$python" -c 'import sys, torch, sirtaki.torch as s; sys.exit(not s.cuda_built())' 2>/dev/null; then
  echo "run: $python has no package sirtaki with the plug-in for CUDA, or no torch, so tensors of torch cannot be" \
    "compared; install them, or leave this out with --without-torch" >&2
  exit 1
fi

if [ -z "$programs" ]; then
  command -v nvcc >/dev/null || {
    echo "run: no nvcc on the PATH, so there are no CUDA kernels" >&2
    exit 1
  }
  cmake --preset release --log-level=WARNING >/dev/null
  cmake --build --preset release --target sirtaki_cuda cuda_device_test cuda_timings
  programs=$(mktemp -d)
  trap 'rm -rf "$programs"' EXIT
  cp "$build/kernels/libsirtaki_cuda.so" "$build/tests/device/cuda_device_test" \
    "$build/benchmarks/gpu/cuda_timings" "$programs"
  cp "$(ldd "$programs/cuda_device_test" | awk '/libhwy/ { print $3 }')" "$programs"
fi
if [ -n "$pack" ]; then
  mkdir -p "$pack"
  cp "$programs"/* "$pack"
  echo "run: packed into $pack"
  exit
fi

"$programs/cuda_device_test" --gtest_brief=1
[ -z "$compare" ] || "$python" -m benchmarks.gpu.correctness
"$python" -m benchmarks.gpu.report --program "$programs/cuda_timings" "$@"
