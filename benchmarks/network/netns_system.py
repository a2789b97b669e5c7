"""Entering, listing and removing network namespaces by the system's own tools. Needs root, iproute2, util-linux.

Does not: know how ours are named or joined (benchmarks/netns.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

NETNS_DIR = Path("/run/netns")
_CLONE_NEWNET = 0x40000000


class NetnsError(RuntimeError):
    """The network could not be made, entered or measured; the text says what to do."""


def find_tool(tool: str) -> str | None:
    """Path of a program, administrators' folders included; None when it is not installed."""
    for folder in [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]:
        path = Path(folder or ".") / tool
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def run_tool(command: Sequence[str], stdin: str | None = None) -> str:
    """Output of a program; its error text as an error."""
    tool = find_tool(command[0])
    if tool is None:
        raise NetnsError(f"'{command[0]}' is not installed")
    done = subprocess.run([tool, *command[1:]], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise NetnsError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def allow_congestion_control(name: str) -> None:
    """Adds it to those that any namespace may choose; some machines list few. Stays when the namespaces are gone."""
    path = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    try:
        allowed = path.read_text().split()
        if name not in allowed:
            path.write_text(" ".join([*allowed, name]))
    except FileNotFoundError:
        # Not the machine's first namespace: it has to be allowed already.
        return
    except OSError as error:
        raise NetnsError(f"TCP congestion control '{name}' cannot be allowed here: {error.strerror}") from None


def enter(namespace: str) -> None:
    """Moves the calling thread into a namespace. Threads started later inherit it."""
    try:
        fd = os.open(NETNS_DIR / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NetnsError(f"no network namespace '{namespace}': {error.strerror}") from None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            raise NetnsError(f"setns({namespace}): {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """A command line that runs `command` in a namespace (no extra process stays between)."""
    return [find_tool("nsenter") or "nsenter", f"--net={NETNS_DIR / namespace}", "--", *command]


def pids_in(namespace: str) -> list[int]:
    """Processes that live in a namespace, the caller left out."""
    listed = run_tool(["ip", "netns", "pids", namespace]).split()
    return [int(pid) for pid in listed if int(pid) != os.getpid()]


def remove_namespaces(names: Sequence[str], grace_seconds: float = 2.0) -> None:
    """Ends what still runs in the namespaces (SIGTERM, then SIGKILL), then removes them."""
    deadline = time.monotonic() + grace_seconds
    for signum in (signal.SIGTERM, signal.SIGKILL):
        alive = [pid for name in names for pid in _pids_or_none(name)]
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        while alive and time.monotonic() < deadline:
            time.sleep(0.02)
            alive = [pid for name in names for pid in _pids_or_none(name)]
        deadline = time.monotonic() + grace_seconds
    for name in names:
        with contextlib.suppress(NetnsError):
            run_tool(["ip", "netns", "del", name])


def _pids_or_none(name: str) -> list[int]:
    try:
        return pids_in(name)
    except NetnsError:
        return []
