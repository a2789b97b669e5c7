#!/usr/bin/env bash
# Sets up a Debian 12 machine: system packages, the virtual environment .venv, its Python packages. Installs only
# missing parts, so a second run changes nothing. Prints each action.
#
# usage: scripts/setup.sh [system|python|compat|all]
# Variables:
#   PYTHON       interpreter for .venv (default /usr/bin/python3)
#   TORCH_INDEX  address of a package index to take torch from, such as one with CPU builds (default: pip's own)
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-/usr/bin/python3}"
TORCH_VERSION=2.13.0
VENV=.venv

BUILD_PACKAGES=(
  g++ cmake ninja-build ccache mold clang-tidy clang-format pkg-config
  python3 python3-venv python3-dev
  libgloo-dev libboost1.81-dev libtomlplusplus-dev libhwy-dev libssl-dev libxxhash-dev libcli11-dev
  libgtest-dev libbenchmark-dev
)
# Packages for network namespaces and shaped links, ssh launches, link checks, training data; a browser for the pages
# of run files.
RUN_PACKAGES=(iproute2 nftables iperf3 openssh-server openssh-client procps util-linux dataset-fashion-mnist fortunes
  chromium-headless-shell)
# Other launchers, for `make compat` alone.
COMPAT_PACKAGES=(openmpi-bin slurm-wlm)
# Trainers of other libraries, for `make compat` alone.
TRAINERS=.cache/compat
TRAINER_PACKAGES=(lightning==2.6.6 accelerate==1.15.0 "transformers[torch]==5.23.0" "ray[train]==2.60.0")

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]
}

install_packages() {
  command -v dpkg-query >/dev/null || fail "not a Debian machine: install these by hand, then run again: $*"
  local missing=()
  local package
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "system packages: all $# are there"
    return
  fi
  say "system packages: installing ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "need root to install ${missing[*]}, and there is no sudo"
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

make_venv() {
  if [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    return
  fi
  say "virtual environment: creating $VENV with $PYTHON"
  "$PYTHON" -m venv --clear "$VENV"
}

# Prefers the CPU build if the index has one: the default build for x86-64 installs several GB of CUDA libraries.
install_torch() {
  local have
  have="$("$VENV/bin/python" -c 'import torch; print(torch.__version__)' 2>/dev/null || true)"
  if [ "${have%%+*}" != "$TORCH_VERSION" ]; then
    local from=()
    if [ -n "${TORCH_INDEX:-}" ]; then
      from=(--index-url "$TORCH_INDEX")
    fi
    say "torch: installing the CPU build of $TORCH_VERSION${TORCH_INDEX:+ from TORCH_INDEX}"
    if ! "$VENV/bin/pip" install -q "${from[@]}" "torch==$TORCH_VERSION+cpu" 2>/dev/null; then
      say "torch: this index has no build named +cpu; taking its default build of $TORCH_VERSION"
      say "torch: on x86-64 that can be the CUDA build (several GB); TORCH_INDEX=<an index with CPU builds> avoids it"
      "$VENV/bin/pip" install -q "${from[@]}" "torch==$TORCH_VERSION"
    fi
  fi
  "$VENV/bin/python" - <<'PY'
import torch

kind = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
print(f"setup: torch {torch.__version__}: {kind}")
PY
}

setup_python() {
  make_venv
  local stamp="$VENV/.sirtaki-setup"
  local want
  want="$(sha256sum scripts/requirements.txt scripts/setup.sh | sha256sum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    say "python packages: up to date in $VENV"
    return
  fi
  say "python packages: installing from scripts/requirements.txt"
  "$VENV/bin/pip" install -q -r scripts/requirements.txt
  install_torch
  printf '%s\n' "$want" >"$stamp"
}

# Installs libraries that train over torch.distributed, each in an environment of its own on top of .venv: torch stays
# at its version, and the project's tests cannot import them.
install_trainers() {
  local packages
  packages="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
  local torch
  torch="$("$VENV/bin/python" -c 'from importlib.metadata import version; print(version("torch"))')"
  mkdir -p "$TRAINERS"
  printf 'torch==%s\n' "$torch" >"$TRAINERS/constraints.txt"
  local name requirement
  for requirement in "${TRAINER_PACKAGES[@]}"; do
    name="${requirement%%[\[=]*}"
    local home="$TRAINERS/$name"
    if [ -f "$home/.installed" ] && [ "$(cat "$home/.installed")" = "$requirement torch $torch" ]; then
      say "$name: up to date in $home"
      continue
    fi
    say "$name: installing into $home"
    "$PYTHON" -m venv --clear --without-pip "$home"
    printf '%s\n' "$packages" >"$home/lib/$(basename "$(dirname "$packages")")/site-packages/sirtaki.pth"
    "$home/bin/python" -m pip install -q --disable-pip-version-check -c "$TRAINERS/constraints.txt" "$requirement"
    printf '%s\n' "$requirement torch $torch" >"$home/.installed"
  done
}

case "${1:-all}" in
  system) install_packages "${BUILD_PACKAGES[@]}" "${RUN_PACKAGES[@]}" ;;
  compat)
    install_packages "${COMPAT_PACKAGES[@]}"
    setup_python
    install_trainers
    ;;
  python) setup_python ;;
  all)
    install_packages "${BUILD_PACKAGES[@]}" "${RUN_PACKAGES[@]}"
    setup_python
    ;;
  *) fail "unknown part '$1': system, python, compat or all" ;;
esac
