"""Network namespaces joined by a bridge, with every link shaped: a small cluster on one machine.

Owned by: benchmarks, the demo and tests that need a slow network. Needs root, iproute2 and
nftables (iperf3 for the self-check). One namespace per node, one for the launcher (unshaped) and
one that holds the bridge, so that nothing is left in the namespace of the host but names under
/run/netns; removing those removes links, bridge and queues with them.

Both ends of a node's link carry a token bucket: its egress, and the bridge's egress towards it.
The bucket counts Ethernet frames, so TCP payload reaches 1448/1514 = 0.956 of the rate.

Does not: run on a machine's real interfaces, or change anything outside its own namespaces.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from benchmarks.network.netns_system import (
    NETNS_DIR,
    NetnsError,
    allow_congestion_control,
    enter,
    find_tool,
    inside,
    pids_in,
    remove_namespaces,
    run_tool,
)

__all__ = [
    "INTERFACE",
    "LAUNCHER",
    "NETNS_DIR",
    "PAYLOAD_SHARE",
    "SWITCH",
    "LinkSpec",
    "Net",
    "NetnsError",
    "NodeBytes",
    "address_of",
    "collect_garbage",
    "enter",
    "find_tool",
    "inside",
    "link_bytes",
    "namespace_from_environment",
    "namespace_of",
    "pids_in",
    "remove_namespaces",
    "unavailable_reason",
    "unwinding_on_signals",
]

PREFIX = "srt"
LAUNCHER = "launcher"
SWITCH = "switch"
INTERFACE = "eth0"
#: Share of a shaped rate that is TCP payload at MTU 1500 with timestamps.
PAYLOAD_SHARE = 1448.0 / 1514.0
#: Environment variable that `run` sets for its command; `exec` finds the network by this variable.
ENV_NET = "BENCH_NETNS"
ENV_LAUNCHER_ADDRESS = "BENCH_NETNS_LAUNCHER_ADDRESS"
RANK_VARIABLES = ("SIRTAKI_JOB_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
#: Congestion control of TCP in every namespace: the default of the Debian kernel. The default of the machine may pace
#: for another bottleneck than a token bucket (BBR with several flows reaches 0.85 of the rate of one).
CONGESTION_CONTROL = "cubic"
#: Default of the token bucket: at full rates no GSO packet is split, which saves the machine work. An idle link passes
#: so many bytes at once.
BURST_BYTES = 128 * 1024
FRAME_BYTES = 1514
_MAX_NODES = 200


# ---- names ---------------------------------------------------------------------------------


def process_start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot; None if no such process exists."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def make_net_id(pid: int | None = None) -> str:
    """Returns a unique name, from which `gc` can tell if its owner is still alive."""
    owner = os.getpid() if pid is None else pid
    return f"{PREFIX}-{owner}-{process_start_ticks(owner) or 0:x}-{secrets.token_hex(3)}"


def parse_net_id(namespace: str) -> tuple[str, int, int] | None:
    """Returns net id, pid and start ticks of the owner from a namespace name of this module; None for other names."""
    parts = namespace.split("-")
    if len(parts) != 5 or parts[0] != PREFIX or not parts[1].isdigit():
        return None
    try:
        ticks = int(parts[2], 16)
    except ValueError:
        return None
    return "-".join(parts[:4]), int(parts[1]), ticks


def owner_is_alive(namespace: str) -> bool:
    """Returns False only for a name of this module whose owner is gone (a reused pid does not count)."""
    parsed = parse_net_id(namespace)
    return parsed is None or process_start_ticks(parsed[1]) == parsed[2]


# ---- system --------------------------------------------------------------------------------


def unavailable_reason() -> str | None:
    """Reason why this machine cannot make namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root (run with sudo), or use a loopback run instead"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux"), ("sysctl", "procps")):
        if find_tool(tool) is None:
            return f"'{tool}' is not installed (Debian package {package})"
    return None


def collect_garbage() -> list[str]:
    """Removes the namespaces of this module whose owner process is gone; returns their names."""
    if not NETNS_DIR.is_dir():
        return []
    leftovers = [name for name in sorted(os.listdir(NETNS_DIR)) if not owner_is_alive(name)]
    if leftovers:
        remove_namespaces(leftovers, grace_seconds=0.5)
    return leftovers


# ---- the network ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkSpec:
    """Behaviour of the link of each node. A rate of None leaves the link as fast as the machine is.

    `drop_share` of the packets is lost at random, except packets that resolve addresses.
    """

    rate_mbit: float | None = None
    burst_bytes: int = BURST_BYTES
    queue_ms: float = 30.0
    drop_share: float = 0.0
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.rate_mbit is not None and self.rate_mbit <= 0:
            raise NetnsError(f"rate {self.rate_mbit} Mbit/s is not positive")
        if self.burst_bytes < 2 * FRAME_BYTES:
            raise NetnsError(f"a burst of {self.burst_bytes} bytes is less than two frames")
        if not 0.0 <= self.drop_share < 1.0:
            raise NetnsError(f"drop share {self.drop_share} is not in [0, 1)")
        if self.delay_ms < 0:
            raise NetnsError(f"delay {self.delay_ms} ms is negative")

    @property
    def limit_bytes(self) -> int:
        """Queue of the token bucket: `queue_ms` of the rate, but room for several GSO packets."""
        if self.rate_mbit is None:
            return 0
        return max(4 * BURST_BYTES, int(self.rate_mbit * 1e6 / 8 * self.queue_ms / 1e3))

    @property
    def payload_bytes_per_second(self) -> float | None:
        """Largest rate of TCP payload of the link, in bytes a second each way; None if unshaped."""
        return None if self.rate_mbit is None else self.rate_mbit * 1e6 / 8 * PAYLOAD_SHARE


@dataclass(frozen=True)
class NodeBytes:
    """Counters of the link of one node since its creation (Ethernet bytes)."""

    node: int
    sent: int
    received: int
    dropped: int


class Net:
    """A cluster of `nodes` namespaces; a context manager. Not shared between threads.

    Owner: the code that enters the context. Leaving it ends every process inside the namespaces and removes them.
    """

    def __init__(self, nodes: int, link: LinkSpec | None = None) -> None:
        if not 1 <= nodes <= _MAX_NODES:
            raise NetnsError(f"{nodes} nodes: give 1 to {_MAX_NODES}")
        self.nodes = nodes
        self.link = link or LinkSpec()
        self.net_id = make_net_id()
        self._made: list[str] = []
        self._relays: list[subprocess.Popen[bytes]] = []

    def namespace(self, node: int | str) -> str:
        """Name of the namespace of a node, of LAUNCHER or of SWITCH."""
        return namespace_of(self.net_id, node)

    def address(self, node: int | str) -> str:
        """IPv4 address of a node or of LAUNCHER."""
        return address_of(node)

    def environment(self) -> dict[str, str]:
        """Variables by which `exec` finds this network."""
        return {ENV_NET: self.net_id, ENV_LAUNCHER_ADDRESS: self.address(LAUNCHER)}

    def command(self, node: int | str, command: Sequence[str]) -> list[str]:
        """Command line that runs `command` on a node."""
        return inside(self.namespace(node), command)

    def __enter__(self) -> Net:
        reason = unavailable_reason()
        if reason is not None:
            raise NetnsError(reason)
        collect_garbage()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes inside and removes the namespaces. Idempotent."""
        with _signals_held():
            for relay in self._relays:
                relay.terminate()
                relay.wait(timeout=5)
            self._relays.clear()
            names, self._made = self._made, []
            remove_namespaces(names)

    def _build(self) -> None:
        allow_congestion_control(CONGESTION_CONTROL)
        self._add(SWITCH)
        self._ip(SWITCH, ["link add name br0 type bridge", "link set br0 up", "link set lo up"])
        everyone: list[int | str] = [LAUNCHER, *range(self.nodes)]
        for node in everyone:
            self._add(node)
            self._join(node)
        if self.link.rate_mbit is not None:
            self.set_rate(self.link.rate_mbit)
        if self.link.drop_share > 0.0:
            for node in range(self.nodes):
                self._drop(node)
        if self.link.delay_ms > 0.0:
            from benchmarks.network import delay_relay

            for node in range(self.nodes):
                enter = self.command(node, [])
                self._relays.append(delay_relay.start(enter, address_of(node), self.link.delay_ms))

    def _add(self, node: int | str) -> None:
        name = self.namespace(node)
        self._made.append(name)
        run_tool(["ip", "netns", "add", name])
        run_tool(inside(name, ["sysctl", "-q", "-w", f"net.ipv4.tcp_congestion_control={CONGESTION_CONTROL}"]))

    def _join(self, node: int | str) -> None:
        port, number = f"p{node}", _number(node)
        self._ip(
            SWITCH,
            [
                f"link add name {port} type veth peer name {INTERFACE} netns {self.namespace(node)}",
                f"link set {port} master br0",
                f"link set {port} up",
            ],
        )
        self._ip(
            node,
            [
                "link set lo up",
                f"address add {address_of(node)}/24 dev {INTERFACE}",
                f"address add fd5a:23::{number:x}/64 dev {INTERFACE} nodad",
                f"link set {INTERFACE} up",
            ],
        )

    def _ip(self, node: int | str, commands: Sequence[str]) -> None:
        run_tool(["ip", "-n", self.namespace(node), "-batch", "-"], "\n".join(commands) + "\n")

    def set_rate(self, rate_mbit: float) -> None:
        """Shapes the link of every node, both ways, from now on. The link of the launcher stays unshaped."""
        link = LinkSpec(rate_mbit, self.link.burst_bytes, self.link.queue_ms)
        shape = (f"root tbf rate {int(rate_mbit * 1e6)}bit burst {link.burst_bytes} limit {link.limit_bytes}").split()
        for node in range(self.nodes):
            for where, device in ((node, INTERFACE), (SWITCH, f"p{node}")):
                name = self.namespace(where)
                run_tool(["tc", "-n", name, "qdisc", "replace", "dev", device, *shape])

    def _drop(self, node: int) -> None:
        # A dropped GSO packet would be up to 44 lost frames at once: segment before the filter.
        # Packets of address resolution pass: a lost request is repeated after a second; three losses fail the address.
        per_million = round(self.link.drop_share * 1e6)
        rules = (
            "table netdev srt {\n chain loss {\n"
            f"type filter hook ingress device {INTERFACE} priority 0;\n"
            "ether type arp accept\n"
            "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n"
            f"numgen random mod 1000000 < {per_million} drop\n}}\n}}\n"
        )
        for where, device in ((node, INTERFACE), (SWITCH, f"p{node}")):
            self._ip(where, [f"link set {device} gso_max_segs 1 gro_max_size 1600"])
        run_tool(inside(self.namespace(node), [find_tool("nft") or "nft", "-f", "-"]), rules)

    def bytes(self) -> list[NodeBytes]:
        """Counters of the links of all nodes."""
        return [link_bytes(self.net_id, node) for node in range(self.nodes)]


def namespace_of(net_id: str, node: int | str) -> str:
    """Name of a namespace of the network `net_id`."""
    return f"{net_id}-{node if isinstance(node, str) else f'r{node}'}"


def _number(node: int | str) -> int:
    return 1 if node == LAUNCHER else 10 + int(node)


def address_of(node: int | str) -> str:
    """IPv4 address of a node or of LAUNCHER; every network uses the same ones."""
    return f"10.23.0.{_number(node)}"


def link_bytes(net_id: str, node: int) -> NodeBytes:
    """Counters of the link of one node: bytes from the interface, drops from all of its queues."""
    name, switch = namespace_of(net_id, node), namespace_of(net_id, SWITCH)
    link = json.loads(run_tool(["ip", "-n", name, "-j", "-s", "link", "show", "dev", INTERFACE]))[0]
    stats = link["stats64"]
    queues = json.loads(run_tool(["tc", "-n", name, "-j", "-s", "qdisc", "show", "dev", INTERFACE]))
    queues += json.loads(run_tool(["tc", "-n", switch, "-j", "-s", "qdisc", "show", "dev", f"p{node}"]))
    dropped = sum(int(queue.get("drops", 0)) for queue in queues)
    return NodeBytes(node, int(stats["tx"]["bytes"]), int(stats["rx"]["bytes"]), dropped)


# ---- signals -------------------------------------------------------------------------------


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Keeps a second Ctrl-C from cutting the removal of namespaces short. Main thread only."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        old = {signum: signal.signal(signum, signal.SIG_IGN) for signum in signals}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


@contextlib.contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit, so that `with Net(...)` cleans up. Main thread."""

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    old = {signum: signal.signal(signum, leave) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


# ---- entry by rank -------------------------------------------------------------------------


def namespace_from_environment(environ: Mapping[str, str], ranks_per_node: int = 1) -> str:
    """Namespace of this process, from BENCH_NETNS and the rank that its launcher set."""
    net_id = environ.get(ENV_NET)
    if not net_id:
        raise NetnsError(f"{ENV_NET} is not set: start the command through 'run', or give --ns")
    for variable in RANK_VARIABLES:
        if environ.get(variable, "").isdigit():
            return namespace_of(net_id, int(environ[variable]) // ranks_per_node)
    raise NetnsError(f"no rank in the environment (looked for {', '.join(RANK_VARIABLES)})")


if __name__ == "__main__":
    from benchmarks.network.netns_cli import main

    sys.exit(main(sys.argv[1:]))
