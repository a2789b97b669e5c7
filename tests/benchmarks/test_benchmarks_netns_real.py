"""Real network namespaces, where allowed: links are shaped, delayed and counted, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import netns
from benchmarks.network import netns_check

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(netns.unavailable_reason() is not None, reason=str(netns.unavailable_reason()))


def _names(pid: int) -> list[str]:
    if not netns.NETNS_DIR.is_dir():
        return []
    return [name for name in os.listdir(netns.NETNS_DIR) if name.startswith(f"{netns.PREFIX}-{pid}-")]


def _cli(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.netns", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def _running_cli() -> subprocess.Popen[str]:
    child = _cli("run", "--nodes", "2", "--rate", "100", "--", "sh", "-c", "echo up; exec sleep 60")
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    assert len(_names(child.pid)) == 4
    return child


def test_every_namespace_has_the_same_congestion_control() -> None:
    with netns.Net(1) as net:
        for node in (netns.SWITCH, netns.LAUNCHER, 0):
            told = netns.inside(net.namespace(node), ["cat", "/proc/sys/net/ipv4/tcp_congestion_control"])
            assert subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip() == "cubic"


def test_a_network_is_gone_after_its_block_even_with_processes_inside() -> None:
    with netns.Net(2) as net:
        inside = subprocess.Popen(net.command(1, ["sleep", "60"]))
        assert len(_names(os.getpid())) == 4
    assert inside.wait(timeout=5) != 0
    assert _names(os.getpid()) == []


def test_a_network_is_gone_after_an_exception() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), netns.Net(1):
        raise RuntimeError("on purpose")
    assert _names(os.getpid()) == []


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_signals_leave_nothing_behind(signum: int, status: int) -> None:
    child = _running_cli()
    child.send_signal(signum)
    assert child.wait(timeout=10) == status
    assert _names(child.pid) == []


def test_gc_removes_what_a_killed_owner_left() -> None:
    child = _running_cli()
    child.kill()
    child.wait()
    netns.collect_garbage()
    assert _names(child.pid) == []


def test_the_command_gets_its_status_through_and_ranks_find_their_node() -> None:
    show = f"{sys.executable} -m benchmarks.netns exec -- ip -br -4 address show dev eth0; exit 3"
    child = _cli("run", "--nodes", "2", "--", "sh", "-c", f"RANK=1 {show}")
    text, _ = child.communicate(timeout=20)
    assert child.returncode == 3
    assert netns.address_of(1) in text


def _send(net: netns.Net, size: int) -> float:
    sink = (
        "import socket; s = socket.create_server(('0.0.0.0', 5301)); print('up', flush=True); p = s.accept()[0]\n"
        "while p.recv(1 << 20): pass\n"
        "p.close()"
    )
    source = (
        "import socket, sys, time; p = socket.create_connection((sys.argv[1], 5301)); b = time.perf_counter()\n"
        "p.sendall(bytes(int(sys.argv[2]))); p.shutdown(1); p.recv(1); print(time.perf_counter() - b)"
    )
    server = subprocess.Popen(net.command(1, [sys.executable, "-c", sink]), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    client = net.command(0, [sys.executable, "-c", source, net.address(1), str(size)])
    seconds = float(subprocess.run(client, check=True, capture_output=True, text=True, timeout=30).stdout)
    server.wait(timeout=5)
    return seconds


def test_a_shaped_link_takes_the_time_it_should_and_counts_its_bytes() -> None:
    size = 2_000_000
    with netns.Net(2, netns.LinkSpec(rate_mbit=50)) as net:
        before = net.bytes()
        seconds = _send(net, size)
        after = net.bytes()
    full = size / (50e6 / 8 * netns.PAYLOAD_SHARE)
    # The token bucket (128 KB) starts full and passes at once; a busy machine can only make the transfer slower.
    assert seconds > 0.85 * full
    assert 1.0 < (after[0].sent - before[0].sent) / size < 1.2
    assert 1.0 < (after[1].received - before[1].received) / size < 1.2


def test_a_delayed_link_has_twice_the_delay_as_round_trip() -> None:
    with netns.Net(2, netns.LinkSpec(delay_ms=3.0)) as net:
        begin = time.monotonic()
        round_trip = netns_check.measure_round_trip(net)
        assert 0.006 <= round_trip < 0.100, f"after {time.monotonic() - begin:.1f} s"


def test_a_lossy_link_drops_about_its_share() -> None:
    probe = (
        "import socket, sys, time\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "for i in range(2000):\n"
        "    s.sendto(b'x', (sys.argv[1], 5302))\n"
        "    if i % 50 == 0: time.sleep(0.001)\n"  # lint: allow(sleep) slower than the receiver's buffer fills
    )
    with netns.Net(2, netns.LinkSpec(drop_share=0.2)) as net:
        subprocess.run(net.command(0, [sys.executable, "-c", probe, net.address(1)]), check=True, timeout=30)
        listed = subprocess.run(
            net.command(1, ["cat", "/proc/net/snmp"]), check=True, capture_output=True, text=True, timeout=10
        ).stdout
    names, values = [line.split()[1:] for line in listed.splitlines() if line.startswith("Udp:")]
    counters = dict(zip(names, map(int, values), strict=True))
    arrived = counters["InDatagrams"] + counters["NoPorts"]
    assert 1450 <= arrived <= 1750


def test_a_lossy_link_resolves_addresses_at_once() -> None:
    probe = (
        "import socket, subprocess, sys, time\n"
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (sys.argv[1], 5302))\n"
        "end, look, listed = time.monotonic() + 10, [sys.argv[2], 'neigh', 'show', sys.argv[1]], ''\n"
        "while time.monotonic() < end and 'lladdr' not in listed:\n"
        "    listed = subprocess.run(look, capture_output=True, text=True).stdout\n"
        "print(listed)"
    )
    with netns.Net(2, netns.LinkSpec(drop_share=0.99)) as net:
        command = net.command(0, [sys.executable, "-c", probe, net.address(1), netns.find_tool("ip") or "ip"])
        listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    assert "lladdr" in listed, listed
