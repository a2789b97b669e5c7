"""Ranks of another launcher meet at a given address: localhost, or an address of this machine where IPv6 is off.

With IPv6 off in the kernel (`ipv6.disable=1`, containers and services that allow AF_INET only) the rendezvous of rank 0
listens on IPv4; a seccomp filter makes socket(AF_INET6) fail here, as RestrictAddressFamilies of systemd does.
`localhost` stands for 127.0.0.1 and ::1, and both are tried. Right: both ranks of each job start and end with 0. During
the run the data ports of these one-host jobs listen on loopback only, and every socket closes in programs that a rank
starts.
"""

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator


def forbid_ipv6() -> None:
    class Rule(ctypes.Structure):
        _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Rule))]

    number = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
    rules = (Rule * 6)(
        Rule(0x20, 0, 0, 0),  # system call number
        Rule(0x15, 0, 3, number),  # is it socket()?
        Rule(0x20, 0, 0, 16),  # first argument: the address family
        Rule(0x15, 0, 1, socket.AF_INET6),
        Rule(0x06, 0, 0, 0x00050000 | 97),  # fail with EAFNOSUPPORT
        Rule(0x06, 0, 0, 0x7FFF0000),  # allow all other calls
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(Program(6, rules)), 0, 0) != 0:
        print("cannot judge: no seccomp here")
        sys.exit(77)


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def sockets() -> Iterator[tuple[int, str]]:
    """Yields descriptor and inode of each socket of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            yield int(name), target[8:-1]


def listening(inodes: set[str], rendezvous_port: int) -> Iterator[str]:
    """Yields the addresses (hexadecimal, as in /proc/net/tcp) at which these sockets listen, except the rendezvous."""
    for family in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{family}") as table:
                rows = [line.split() for line in table][1:]
        except OSError:
            continue
        for row in rows:
            address, port = row[1].split(":")
            if row[3] == "0A" and row[9] in inodes and int(port, 16) != rendezvous_port:
                yield address


def stays_open(number: int) -> bool:
    """Tells whether a program that this process starts would inherit the descriptor; false if it is closed."""
    try:
        return not fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    except OSError:
        return False


def rank() -> int:
    import sirtaki

    before = {inode for _, inode in sockets()}
    sirtaki.init()
    mine = [(number, inode) for number, inode in sockets() if inode not in before]
    port = int(os.environ["SIRTAKI_JOB_RENDEZVOUS"].rpartition(":")[2])
    addresses = sorted(listening({inode for _, inode in mine}, port))
    kept = [number for number, _ in mine if stays_open(number)]
    good = bool(mine) and addresses == ["0100007F"] and not kept
    print(f"rank {sirtaki.rank()}: listens at {addresses}, sockets that stay open in other programs: {kept}")
    sirtaki.shutdown()
    return int(not good)


def run(host: str, secret: str) -> bool:
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    ranks = []
    for number in range(2):
        env = {key: value for key, value in os.environ.items() if not key.startswith("SIRTAKI_JOB_")}
        env |= {"SIRTAKI_JOB_RENDEZVOUS": f"{host}:{port}", "SIRTAKI_JOB_SECRET_FILE": secret}
        env |= {"OMPI_COMM_WORLD_RANK": str(number), "OMPI_COMM_WORLD_SIZE": "2"}
        env |= {"OMPI_COMM_WORLD_LOCAL_RANK": str(number), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
        command = [sys.executable, __file__, "rank"]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    texts = [process.communicate(timeout=60)[0] for process in ranks]
    good = all(process.returncode == 0 for process in ranks)
    print(f"meeting at {host}: {'right' if good else 'WRONG'}", "" if good else "\n".join(texts))
    return good


def judge() -> int:
    with tempfile.TemporaryDirectory() as folder:
        secret = os.path.join(folder, "secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as out:
            out.write("ab" * 32)
        good = run("localhost", secret)
        forbid_ipv6()
        good &= run("localhost", secret)
        good &= run(own_address(), secret)
    return int(not good)


if __name__ == "__main__":
    sys.exit(rank() if sys.argv[1:] == ["rank"] else judge())
