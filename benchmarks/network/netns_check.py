"""Checks of the rate and the delay of a shaped network, with iperf3.

Does not: make networks (benchmarks/netns.py) or judge benchmarks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks import netns


def measure_goodput(net: netns.Net, seconds: float = 2.0, sender: int = 0, receiver: int = 1) -> float:
    """Measures TCP payload in bytes per second between two nodes by iperf3, without the first second."""
    iperf = netns.find_tool("iperf3")
    if iperf is None:
        raise netns.NetnsError("'iperf3' is not installed (Debian package iperf3)")
    server = subprocess.Popen(
        net.command(receiver, [iperf, "-s", "-1", "-J"]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = net.command(sender, [iperf, "-c", net.address(receiver), "-J", "-O", "1", "-t", str(seconds)])
        deadline = time.monotonic() + 5
        while True:
            done = subprocess.run(client, capture_output=True, text=True, timeout=seconds + 20, check=False)
            report = json.loads(done.stdout or "{}")
            if done.returncode == 0 and "error" not in report:
                return float(report["end"]["sum_received"]["bits_per_second"]) / 8
            if time.monotonic() > deadline:
                raise netns.NetnsError(f"iperf3: {report.get('error', done.stderr.strip())}")
            time.sleep(0.05)
    finally:
        server.kill()
        server.wait()


def check_rate(net: netns.Net, tolerance: float = 0.02) -> float:
    """Returns the measured payload rate over the expected one; raises NetnsError if it is off by over `tolerance`."""
    expected = net.link.payload_bytes_per_second
    if expected is None:
        raise netns.NetnsError("an unshaped network has no rate to check")
    ratio = measure_goodput(net) / expected
    if abs(ratio - 1.0) > tolerance:
        raise netns.NetnsError(
            f"the link carries {ratio:.3f} of the {expected / 1e6:.1f} MB/s it should; is the machine busy?"
        )
    return ratio


_ECHO = """
import socket, sys
peer = socket.create_server(("0.0.0.0", 5300)).accept()[0]
while data := peer.recv(1):
    peer.sendall(data)
"""
_PING = """
import socket, sys, time
deadline = time.monotonic() + 10
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 5300), timeout=10)
        break
    except ConnectionRefusedError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.02)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(50):
    begin = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(1)
    times.append(time.perf_counter() - begin)
print(sorted(times)[25])
"""


def measure_round_trip(net: netns.Net, first: int = 0, second: int = 1) -> float:
    """Measures the median seconds of a one-byte TCP round trip between two nodes."""
    echo = subprocess.Popen(net.command(second, [sys.executable, "-c", _ECHO]))
    try:
        ping = net.command(first, [sys.executable, "-c", _PING, net.address(second)])
        done = subprocess.run(ping, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise netns.NetnsError(f"no round trip: {done.stderr.strip()}")
        return float(done.stdout)
    finally:
        echo.kill()
        echo.wait()
