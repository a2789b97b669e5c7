#!/usr/bin/env bash
# Runs all checks and measurements that need a GPU: builds, compares with the CPU, times, trains; prints one table last.
#
# usage: benchmarks/gpu/run.sh [--quick] [--only PART[,PART...]] [--minutes N] [--results DIR] [--packages DIR]
#                              [--build DIR]
#        benchmarks/gpu/run.sh --bundle DIR
# --help lists the parts; --bundle prepares a folder for a machine without the packages of scripts/setup.sh.
# Folders are relative to the root of the repository.
# Variables: PYTHON, an interpreter that has torch (default: the one of .venv, else python3).
set -euo pipefail
cd "$(dirname "$0")/../.."

# The default folder of CUDA.
export PATH="$PATH:/usr/local/cuda/bin"
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v "${PYTHON:-python3}") || {
  echo "run: no ${PYTHON:-python3}: PYTHON names another interpreter" >&2
  exit 1
}
exec "$python" -m benchmarks.gpu.run "$@"
