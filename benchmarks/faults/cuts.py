"""Cuts a process off: its connections carry nothing until the cut is healed. Requires root and nftables.

Does not: work in the namespace of the machine, whose ports others may use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from benchmarks.network.netns_system import NetnsError, run_tool

_RULES = """table inet {table} {{
 chain in {{ type filter hook input priority 0;
  tcp dport {{ {ports} }} drop; tcp sport {{ {ports} }} drop; }}
}}
"""


def ports_of(pid: int) -> set[int]:
    """Returns the local ports of the TCP sockets of a process, also of those that listen."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    ports = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def cut(pid: int) -> Callable[[], None]:
    """Drops all packets of the sockets that a process has now; returns the function that heals the cut.

    Raises:
        NetnsError: the process is in this network namespace, or there is no nftables.
    """
    if os.stat(f"/proc/{pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
        raise NetnsError(f"process {pid} has no network namespace of its own, so it cannot be cut off")
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
    table = f"cut{pid}"
    # A namespace lives as long as somebody has it open, and the process may end before the cut is healed.
    holder = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    rules = _RULES.format(table=table, ports=", ".join(map(str, sorted(ports_of(pid)))))
    run_tool([*inside, "nft", "-f", "-"], rules)
    return partial(_heal, holder, table)


def _heal(holder: int, table: str) -> None:
    try:
        run_tool(["nsenter", f"--net=/proc/{os.getpid()}/fd/{holder}", "nft", "delete", "table", "inet", table])
    finally:
        os.close(holder)
