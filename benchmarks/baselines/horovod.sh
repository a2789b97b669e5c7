#!/usr/bin/env bash
# Builds Horovod 0.28.1 (Gloo, PyTorch only) for torch 2.13 in an environment of its own, as a baseline for the benchmarks.
#
#   benchmarks/baselines/horovod.sh [DIRECTORY]
#
# DIRECTORY (or $BENCH_HOROVOD_ENV, or ~/.cache/sirtaki-bench/horovod) becomes a virtual environment. The project
# never imports it: the benchmarks start its interpreter as a separate process. Requires a C++20 compiler, CMake, access
# to a Python package index, 3 GB of disk, and about 10 minutes of one core. A finished environment is left as it is.
#
# JOBS=n   parallel compile jobs (default 1)      NICE=n   niceness of the build (default 19)
set -euo pipefail

readonly kHorovod=0.28.1
readonly kTorch=2.13.0
env_dir=${1:-${BENCH_HOROVOD_ENV:-${HOME}/.cache/sirtaki-bench/horovod}}
jobs=${JOBS:-1}
niceness=${NICE:-19}
python=${PYTHON:-python3}

say() { printf 'horovod baseline: %s\n' "$*" >&2; }

works() {
  [ -x "${env_dir}/bin/python" ] &&
    "${env_dir}/bin/python" -c 'import horovod.torch as h, horovod; assert h.gloo_built() and horovod.__version__ == "'"${kHorovod}"'"' \
      2>/dev/null
}

if works; then
  say "already built in ${env_dir}"
  exit 0
fi

case "$(realpath -m "${env_dir}")/" in
  "$(realpath "$(dirname "$0")/../..")"/*)
    say "refusing to build inside the project; give a directory outside it"
    exit 2
    ;;
esac

mkdir -p "${env_dir}"
env_dir=$(realpath "${env_dir}")
say "creating ${env_dir}"
"${python}" -m venv "${env_dir}"
pip=("${env_dir}/bin/python" -m pip --disable-pip-version-check -q)
"${pip[@]}" install "torch==${kTorch}" numpy cloudpickle psutil pyyaml packaging 'setuptools<81' wheel cffi

src=$(mktemp -d "${env_dir}/src.XXXXXX")
trap 'rm -rf "${src}"' EXIT
say "fetching the source of horovod ${kHorovod}"
"${pip[@]}" download --no-deps --no-build-isolation --no-binary horovod -d "${src}" "horovod==${kHorovod}"
tar -xzf "${src}/horovod-${kHorovod}.tar.gz" -C "${src}"
tree="${src}/horovod-${kHorovod}"

# The headers of torch 2.13 need C++20; the sdist sets C++14 in its CMake files and C++11 in its copy of Gloo.
patched=0
while IFS= read -r -d '' file; do
  if grep -qE 'CMAKE_CXX_STANDARD[[:space:]]+14|-std=c\+\+11' "${file}"; then
    sed -i -E 's/(CMAKE_CXX_STANDARD[[:space:]]+)14/\120/; s/-std=c\+\+11/-std=c++20/g' "${file}"
    patched=$((patched + 1))
  fi
done < <(find "${tree}/CMakeLists.txt" "${tree}/horovod" "${tree}/third_party/gloo" "${tree}/third_party/compatible_gloo" \
  "${tree}/third_party/compatible17_gloo" -name CMakeLists.txt -print0 2>/dev/null)
if [ "${patched}" -lt 2 ]; then
  say "the sources are not the expected ones: only ${patched} CMake files matched the C++ standard patch"
  exit 1
fi

say "building with ${jobs} job(s) at niceness ${niceness}; about 10 minutes"
log="${env_dir}/build.log"
if ! env HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
  HOROVOD_WITHOUT_MXNET=1 HOROVOD_CPU_OPERATIONS=GLOO MAKEFLAGS="-j${jobs}" CMAKE_BUILD_PARALLEL_LEVEL="${jobs}" \
  PATH="${env_dir}/bin:${PATH}" \
  nice -n "${niceness}" "${env_dir}/bin/python" -m pip --disable-pip-version-check -v wheel --no-deps --no-build-isolation \
  -w "${src}/wheel" "${tree}" >"${log}" 2>&1; then
  tail -n 40 "${log}" >&2
  say "the build failed; the whole log is ${log}"
  exit 1
fi
"${pip[@]}" install --no-deps "${src}"/wheel/horovod-*.whl
works || {
  say "built, but horovod.torch does not import: see ${log}"
  exit 1
}
say "ready: ${env_dir}/bin/python"
