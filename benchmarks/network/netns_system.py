"""Enters, lists and removes network namespaces with tools of the system. Requires root, iproute2, util-linux.

Does not: know names or links of the benchmark networks (benchmarks/netns.py).
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
    """The network could not be made, entered or measured; the text names the next step."""


def find_tool(tool: str) -> str | None:
    """Path of a program, also in folders of administrators; None if the program is not installed."""
    for folder in [*os.environ.get("PATH", "").split(":"), "/usr/sbin", "/sbin"]:
        path = Path(folder or ".") / tool
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def run_tool(command: Sequence[str], stdin: str | None = None) -> str:
    """Runs a program and returns its output; raises NetnsError with its error text if it fails."""
    tool = find_tool(command[0])
    if tool is None:
        raise NetnsError(f"'{command[0]}' is not installed")
    done = subprocess.run([tool, *command[1:]], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise NetnsError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def allow_congestion_control(name: str) -> None:
    """Allows all namespaces to use the congestion control `name`; some machines allow few.

    The setting stays when the namespaces are gone.
    """
    path = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    try:
        allowed = path.read_text().split()
        if name not in allowed:
            path.write_text(" ".join([*allowed, name]))
    except FileNotFoundError:
        # The file exists only in the first namespace of the machine; elsewhere the setting must have been made before.
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
    """Command line that runs `command` in a namespace, without an extra process between."""
    return [find_tool("nsenter") or "nsenter", f"--net={NETNS_DIR / namespace}", "--", *command]


def pids_in(namespace: str) -> list[int]:
    """Ids of the processes in a namespace, without the caller."""
    listed = run_tool(["ip", "netns", "pids", namespace]).split()
    return [int(pid) for pid in listed if int(pid) != os.getpid()]


def remove_namespaces(names: Sequence[str], grace_seconds: float = 2.0) -> None:
    """Ends all processes in the namespaces (SIGTERM, then SIGKILL), then removes the namespaces."""
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
