#!/usr/bin/env bash
# Sets up a machine with Debian 12 (on 13 its system packages): system packages, the virtual environment .venv, its
# Python packages. Installs only missing parts, so a second run changes nothing. Prints each action.
#
# usage: scripts/setup.sh [PART ...]
# Parts: build, demo, docs, test, lint, compat: system packages and Python packages for `make build`, `make demo`, …;
#   demo, test, lint and compat each need build, too. system: all of their system packages but those of compat. python:
#   Python packages of build, demo, docs and test. all (default): system and python. list PART: prints the system packages
#   of a part.
# Variables:
#   PYTHON          interpreter for .venv (default /usr/bin/python3)
#   TORCH_INDEX     address of a package index to take torch from, such as one with CPU builds (default: pip's own)
#   SIRTAKI_NO_APT  1: install no system packages; one line names those that are missing, unless they are elsewhere
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-/usr/bin/python3}"
TORCH_VERSION=2.13.0
VENV=.venv

# "a|b": the first that the release has. The default Boost of Debian 12 is too old.
PACKAGES_build=(
  g++ cmake ninja-build ccache mold
  python3 python3-venv python3-dev
  "libboost1.81-dev|libboost-dev" libtomlplusplus-dev libhwy-dev libssl-dev libxxhash-dev libcli11-dev libgloo-dev
)
# Network namespaces with shaped links, and training data.
PACKAGES_demo=(iproute2 procps util-linux dataset-fashion-mnist)
# The site needs Python alone.
PACKAGES_docs=(python3 python3-venv)
# C++ tests, the demo's network, firewalls, link checks, ssh launches, texts to train on; a browser for the pages of run
# files.
PACKAGES_test=(
  "${PACKAGES_demo[@]}" pkg-config libgtest-dev libbenchmark-dev nftables iperf3 openssh-server openssh-client fortunes
  chromium-headless-shell
)
PACKAGES_lint=(clang-tidy clang-format libgtest-dev libbenchmark-dev)
# Other launchers.
PACKAGES_compat=(openmpi-bin slurm-wlm)
# Trainers of other libraries, for `make compat` alone.
TRAINERS=.cache/compat
TRAINER_PACKAGES=(lightning==2.6.6 accelerate==1.15.0 "transformers[torch]==5.23.0" "ray[train]==2.60.0")

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# Prints the system packages of the parts, one a line.
packages_of() {
  local part
  for part in "$@"; do
    local -n packages="PACKAGES_$part"
    printf '%s\n' "${packages[@]}"
  done | awk '!seen[$0]++'
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]
}

has_candidate() {
  local policy
  policy="$(LC_ALL=C apt-cache policy "$1" 2>/dev/null || true)"
  [[ "$policy" =~ Candidate:\ [^\(] ]]
}

# Returns whether "a|b" is installed: a, or b if the release has no a.
has_one_of() {
  local name
  for name in ${1//|/ }; do
    ! is_installed "$name" || return 0
    [ "$name" = "${1##*|}" ] || ! has_candidate "$name" || return 1
  done
  return 1
}

# Prints the first name of "a|b" that this release has; the last, if it has none.
choose() {
  local name
  for name in ${1//|/ }; do
    [ "$name" != "${1##*|}" ] || break
    ! has_candidate "$name" || break
  done
  printf '%s\n' "$name"
}

# install_packages PART...: installs the missing system packages of the parts.
install_packages() {
  local wanted missing=() package
  mapfile -t wanted < <(packages_of "$@")
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian machine, so these packages of Debian are taken to be here under other names: ${wanted[*]}"
    return
  fi
  for package in "${wanted[@]}"; do
    has_one_of "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "system packages ($*): all ${#wanted[@]} are there"
    return
  fi
  if [ "${SIRTAKI_NO_APT:-0}" != 0 ]; then
    local names=()
    for package in "${missing[@]}"; do
      names+=("$(choose "$package")")
    done
    say "missing system packages ($*), which SIRTAKI_NO_APT forbids to install: ${names[*]}"
    return
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "need root to install ${missing[*]}, and there is no sudo"
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  local chosen=()
  for package in "${missing[@]}"; do
    chosen+=("$(choose "$package")")
  done
  say "system packages ($*): installing ${chosen[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${chosen[@]}"
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

# setup_python FILE...: installs the packages of requirement files, and torch.
setup_python() {
  make_venv
  local file stamp="$VENV/.sirtaki-setup"
  touch "$stamp"
  for file in "$@"; do
    local want
    want="$file $(sha256sum "$file" scripts/setup.sh | sha256sum)"
    if grep -qxF "$want" "$stamp"; then
      say "python packages: up to date in $VENV ($file)"
      continue
    fi
    say "python packages: installing from $file"
    "$VENV/bin/pip" install -q -r "$file"
    [ "$file" = "$DOCS" ] || install_torch
    sed -i "\\|^$file |d" "$stamp"
    printf '%s\n' "$want" >>"$stamp"
  done
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

RUN=scripts/requirements.txt
TEST=scripts/requirements-test.txt
DOCS=scripts/requirements-docs.txt
if [ "${1:-}" = list ]; then
  for part in "${@:2}"; do
    [[ "$part" =~ ^(build|demo|docs|test|lint|compat)$ ]] || fail "list takes build, demo, docs, test, lint and compat, not '$part'"
  done
  packages_of "${@:2}"
  exit
fi
parts=()
files=()
trainers=
for part in "${@:-all}"; do
  case "$part" in
    build | demo) parts+=(build "$part") files+=("$RUN") ;;
    docs) parts+=(docs) files+=("$DOCS") ;;
    lint) parts+=(build lint) files+=("$RUN" "$TEST") ;;
    test) parts+=(build test) files+=("$RUN" "$TEST" "$DOCS") ;;
    compat) parts+=(build compat) files+=("$RUN" "$TEST") trainers=1 ;;
    system) parts+=(build demo test lint) ;;
    python) files+=("$RUN" "$TEST" "$DOCS") ;;
    all) parts+=(build demo test lint) files+=("$RUN" "$TEST" "$DOCS") ;;
    *) fail "unknown part '$part': build, demo, docs, test, lint, compat, system, python, all or list" ;;
  esac
done
if [ ${#parts[@]} -gt 0 ]; then
  mapfile -t parts < <(printf '%s\n' "${parts[@]}" | awk '!seen[$0]++')
  install_packages "${parts[@]}"
fi
if [ ${#files[@]} -gt 0 ]; then
  mapfile -t files < <(printf '%s\n' "${files[@]}" | awk '!seen[$0]++')
  setup_python "${files[@]}"
fi
if [ -n "$trainers" ]; then
  install_trainers
fi
