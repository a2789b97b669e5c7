#!/usr/bin/env bash
# Runs a shell command in the system of a folder whose programs are of aarch64, by QEMU. The kernel learns of QEMU in a
# user namespace that ends with the command, so other programs of this machine never meet it.
# Requires root, Linux 6.7 with binfmt_misc, and Debian's package qemu-user-static.
#
# usage: scripts/qemu_chroot.sh FOLDER COMMAND
set -euo pipefail
MAP="0 0 65536"
# The header of a program of aarch64; F: the kernel opens QEMU now, since the folder has none.
FORMAT=':aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
FORMAT+=':\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
QEMU="$(command -v qemu-aarch64-static)" || {
  echo "qemu_chroot: there is no qemu-aarch64-static: install Debian's package qemu-user-static" >&2
  exit 1
}
FORMAT+=":$QEMU:F"

# inside FOLDER COMMAND: runs the command in namespaces, and ends with this script. Without a map of users it has no
# rights, so it waits for the map first.
inside() {
  echo ready
  read -r _
  exec >&3 3>&-
  exec setpriv --pdeathsig KILL unshare --mount --pid --uts --fork --kill-child bash -euc '
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    printf "%s" "$1" >/proc/sys/fs/binfmt_misc/register
    mount -t proc proc "$2/proc"
    mount -t tmpfs tmpfs "$2/dev/shm"
    exec chroot "$2" /bin/sh -ec "$3"' - "$FORMAT" "$1" "$2" </dev/null
}
if [ "${1:-}" = --inside ]; then
  inside "$2" "$3"
fi
exec 3>&1
coproc exec unshare --user "$0" --inside "$1" "$2"
# The shell unsets these variables when the process has ended.
pid="${COPROC_PID-}"
if ! { read -r _ <&"${COPROC[0]-}"; } 2>/dev/null; then
  echo "qemu_chroot: there is no user namespace: unshare has failed (sysctl user.max_user_namespaces or" \
    "kernel.unprivileged_userns_clone)" >&2
  exit 1
fi
echo "$MAP" >"/proc/$pid/uid_map"
echo "$MAP" >"/proc/$pid/gid_map"
echo >&"${COPROC[1]}"
wait "$pid"
