#!/usr/bin/env bash
# Everything that needs a GPU, in one command: builds, compares with the CPU, times, trains; one table last.
#
# usage: benchmarks/gpu/run.sh [--quick] [--only PART[,PART...]] [--results DIR] [--packages DIR] [--build DIR]
#        benchmarks/gpu/run.sh --bundle DIR
# --help says what the parts are; --bundle prepares what a machine without the packages of scripts/setup.sh needs.
# Folders are relative to the repository's root.
# Variables: PYTHON, an interpreter that has torch (default .venv's, else python3).
set -euo pipefail
cd "$(dirname "$0")/../.."

# Where CUDA installs itself.
export PATH="$PATH:/usr/local/cuda/bin"
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v "${PYTHON:-python3}") || {
  echo "run: no ${PYTHON:-python3}: PYTHON names another interpreter" >&2
  exit 1
}
exec "$python" -m benchmarks.gpu.run "$@"
