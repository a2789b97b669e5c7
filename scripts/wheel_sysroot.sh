#!/usr/bin/env bash
# Makes a folder with the C library of Debian 11 (glibc 2.31) and the libraries that a wheel links in, all from Debian's
# archive: nothing is installed on this machine, and root is not needed. The compiler is this machine's g++ 12.
#
# usage: scripts/wheel_sysroot.sh FOLDER [x86_64|aarch64]
# Variable: DEBIAN_MIRROR (default http://deb.debian.org/debian)
set -euo pipefail
HERE="$(cd "$(dirname "$0")/.." && pwd)"
mkdir -p "$1"
ROOT="$(cd "$1" && pwd)"
MIRROR="${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# The loader and the C library that the wheel needs at run time.
OLD=(libc6 libc6-dev libgcc-s1 libcrypt1 libcrypt-dev)
# Headers, and libraries that are linked in. libstdc++.a must belong to the compiler.
NEW=(linux-libc-dev libgcc-12-dev libstdc++-12-dev libboost1.81-dev libtomlplusplus-dev libcli11-dev libxxhash-dev
  libssl-dev)
# Other options of the compiler.
FLAGS=()
# A library that Debian has no archive of (.a): compiled from its source.
SOURCE=highway

ARCH="${2:-x86_64}"
TRIPLE="$ARCH-linux-gnu"
case "$ARCH" in
  x86_64) DEBIAN=amd64 PREFIX='' PACKAGE=g++-12 ;;
  aarch64)
    DEBIAN=arm64 PREFIX="$TRIPLE-" PACKAGE=g++-12-aarch64-linux-gnu
    # The headers of Python, which this machine has for its own architecture only.
    NEW+=(libpython3.11-dev)
    # A cross compiler reads the headers of its own C library first (cmake/wheel_toolchain.cmake).
    FLAGS=(-nostdinc)
    for folder in include/c++/12 "include/$TRIPLE/c++/12" "lib/gcc/$TRIPLE/12/include" "include/$TRIPLE" include; do
      FLAGS+=(-isystem "$ROOT/root/usr/$folder")
    done
    ;;
  *) echo "sysroot: unknown architecture '$ARCH': name x86_64 or aarch64" >&2 && exit 1 ;;
esac
CXX="${PREFIX}g++-12"
AR="${PREFIX}ar"

say() { printf 'sysroot: %s\n' "$*"; }
# logged COMMAND...: runs a command with its output in the log, whose end is shown if it fails.
logged() {
  "$@" >>"$ROOT/log" 2>&1 || {
    say "$* failed:" >&2
    tail -5 "$ROOT/log" >&2
    exit 1
  }
}

want="$({ sha256sum "$HERE/scripts/wheel_sysroot.sh" && echo "$MIRROR $ARCH"; } | sha256sum)"
if [ -f "$ROOT/stamp" ] && [ "$(cat "$ROOT/stamp")" = "$want" ]; then
  say "up to date in $ROOT"
  exit
fi
command -v "$CXX" >/dev/null || {
  say "there is no $CXX: install Debian's package $PACKAGE, since libstdc++.a of the sysroot belongs to it" >&2
  exit 1
}
[ -f "$KEYRING" ] || {
  say "there is no $KEYRING: install Debian's package debian-archive-keyring" >&2
  exit 1
}

# Removes only what an earlier run has made, so that a wrong FOLDER costs nothing.
if [ ! -f "$ROOT/log" ] && [ -n "$(ls -A "$ROOT")" ]; then
  say "$ROOT holds other files: name an empty folder" >&2
  exit 1
fi
rm -rf "$ROOT"/{apt,debs,sources,root,stamp,log}
mkdir -p "$ROOT"/{apt/lists/partial,apt/cache/archives/partial,debs,sources,root}
: >"$ROOT/apt/status"
for suite in bullseye bookworm; do
  printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$MIRROR" "$suite"
done >"$ROOT/apt/sources.list"
printf 'deb-src [signed-by=%s] %s bookworm main\n' "$KEYRING" "$MIRROR" >>"$ROOT/apt/sources.list"
apt() {
  apt-get -q -o APT::Architecture="$DEBIAN" -o APT::Architectures="$DEBIAN" \
    -o Dir::Etc::SourceList="$ROOT/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State="$ROOT/apt" -o Dir::State::Lists="$ROOT/apt/lists" \
    -o Dir::State::status="$ROOT/apt/status" -o Dir::Cache="$ROOT/apt/cache" -o APT::Sandbox::User="$(id -un)" "$@"
}

say "reading the lists of $MIRROR (bullseye, bookworm)"
logged apt update
say "downloading ${OLD[*]} of Debian 11; ${NEW[*]}, the source of $SOURCE of Debian 12"
(cd "$ROOT/debs" && logged apt download "${OLD[@]/%//bullseye}" "${NEW[@]/%//bookworm}")
(cd "$ROOT/sources" && logged apt source --download-only "$SOURCE")
for deb in "$ROOT"/debs/*.deb; do
  dpkg-deb -x "$deb" "$ROOT/root"
done
# Links to absolute paths would lead out of the folder.
find "$ROOT/root" -type l -lname '/*' -printf '%p %l\n' | while read -r link target; do
  ln -sfn "$ROOT/root$target" "$link"
done
say "compiling libhwy.a"
hwy="$ROOT/sources/$SOURCE"
mkdir "$hwy"
tar -xf "$ROOT"/sources/*.orig.tar.gz -C "$hwy" --strip-components=1
for name in aligned_allocator targets per_target; do
  "$CXX" "--sysroot=$ROOT/root" "${FLAGS[@]}" -std=c++17 -O2 -DNDEBUG -fPIC -fvisibility=hidden -DHWY_STATIC_DEFINE \
    "-I$hwy" -c "$hwy/hwy/$name.cc" -o "$hwy/$name.o"
done
"$AR" rcs "$ROOT/root/usr/lib/$TRIPLE/libhwy.a" "$hwy"/*.o
(cd "$hwy" && find hwy -name '*.h' ! -path '*/tests/*' -exec cp --parents {} "$ROOT/root/usr/include" \;)

rm -rf "$ROOT/apt" "$ROOT/debs" "$ROOT/sources"
printf '%s\n' "$want" >"$ROOT/stamp"
say "done: $(du -sh "$ROOT" | cut -f1) in $ROOT"
