"""Delays the packets that a network namespace sends, by a TUN device: for kernels without netem.

Run inside the namespace as root, one for each node: `python -m benchmarks.network.delay_relay ADDRESS DELAY_MS`. IPv4
packets that the node itself makes are routed into the device, held for the delay here, and written back, from where the
kernel forwards them to the real link. Segmentation offload is kept, so that one read moves up to 64 KB. A round trip
between two such nodes takes twice the delay.

Does not: delay IPv6, limit the rate (tbf does, behind it), reorder or drop.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

DEVICE = "delay0"
_TABLE = "100"
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO_ECN = 0x01, 0x02, 0x08
_MAX_PACKET = 65536 + 64
_READY = b"ready\n"


def start(enter: list[str], address: str, delay_ms: float) -> subprocess.Popen[bytes]:
    """Starts a relay through the command prefix `enter`, and returns when packets go through it."""
    root = Path(__file__).resolve().parents[2]
    command = [*enter, sys.executable, "-m", "benchmarks.network.delay_relay", address, str(delay_ms)]
    relay = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)
    assert relay.stdout is not None
    if relay.stdout.readline() != _READY:
        relay.kill()
        raise OSError(f"the delay relay of {address} did not start (status {relay.wait()})")
    return relay


def _open_device() -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
    fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO_ECN)
    return fd


def _route(address: str) -> None:
    network = address.rpartition(".")[0] + ".0/24"
    for command in (
        f"link set {DEVICE} up txqueuelen 10000",
        f"route add {network} dev {DEVICE} src {address} table {_TABLE}",
        f"rule add iif lo lookup {_TABLE} priority 100",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    settings = Path("/proc/sys/net/ipv4")
    (settings / "ip_forward").write_text("1")
    for device in ("all", DEVICE):
        (settings / "conf" / device / "rp_filter").write_text("0")
    # Packets that come back from the device carry the address of this node; the kernel drops them by default.
    (settings / "conf" / DEVICE / "accept_local").write_text("1")


def relay_packets(fd: int, delay_seconds: float) -> None:
    """Holds every packet for the delay. Never returns."""
    waiting: collections.deque[tuple[float, bytes]] = collections.deque()
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _write(fd, waiting.popleft()[1])
        timeout = max(0.0, waiting[0][0] - now) if waiting else None
        if not select.select([fd], [], [], timeout)[0]:
            continue
        due = time.monotonic() + delay_seconds
        try:
            while True:
                waiting.append((due, os.read(fd, _MAX_PACKET)))
        except BlockingIOError:
            pass


def _write(fd: int, packet: bytes) -> None:
    try:
        os.write(fd, packet)
    except OSError:
        # The kernel refuses a packet when it has no room; a network would have lost the packet, too.
        return


def main(address: str, delay_ms: str) -> None:
    """Sets the device and the routes up, then relays until it is killed."""
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    libc.prctl(29, 1000, 0, 0, 0)  # PR_SET_TIMERSLACK, ns
    fd = _open_device()
    _route(address)
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    relay_packets(fd, float(delay_ms) / 1e3)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
