"""Two hosts on one machine: network namespaces joined by a veth pair, with an ssh server in the second.

Needs root. All files lie in a folder of the caller, all links in two namespaces named after this process's id.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from launch_support import wait_until

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks.network import delay_relay

PORT = 2222


def unavailable_reason() -> str | None:
    """Returns the reason why this machine cannot set up two hosts; None if it can."""
    return None if os.geteuid() == 0 else "network namespaces need root"


def run(*command: str) -> str:
    """Runs a tool that must succeed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


class Hosts:
    """Two hosts: `near` runs the launcher, `far` the ssh server."""

    near_address = "10.123.77.1"
    far_address = "10.123.77.2"
    far_address6 = "fd77:123::2"
    silent_address = "10.123.77.99"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.near = f"launch-{os.getpid()}-a"
        self.far = f"launch-{os.getpid()}-b"
        self.server: subprocess.Popen[bytes] | None = None

    def join(self) -> None:
        """Makes the namespaces and the link between them."""
        for name in (self.near, self.far):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.far)
        for name, last in ((self.near, "1"), (self.far, "2")):
            run("ip", "-n", name, "address", "add", f"10.123.77.{last}/24", "dev", "eth0")
            run("ip", "-n", name, "address", "add", f"fd77:123::{last}/64", "dev", "eth0", "nodad")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    @contextlib.contextmanager
    def shaped(self, near_mbit: float, far_mbit: float) -> Iterator[None]:
        """Limits the rate at which each of the hosts sends."""
        rates = {self.near: near_mbit, self.far: far_mbit}
        for name, mbit in rates.items():
            run(*f"tc -n {name} qdisc add dev eth0 root tbf rate {mbit}mbit burst 128kb limit 512kb".split())
        try:
            yield
        finally:
            for name in rates:
                run("tc", "-n", name, "qdisc", "del", "dev", "eth0", "root")

    @contextlib.contextmanager
    def delayed(self, milliseconds: float) -> Iterator[None]:
        """Delays all IPv4 packets of both hosts."""
        with contextlib.ExitStack() as relays:
            for name, address in ((self.near, self.near_address), (self.far, self.far_address)):
                relay = delay_relay.start([*self.inside(name)], address, milliseconds)
                # The device and its route go with the process; the rule stays.
                relays.callback(run, *self.inside(name), "ip", "rule", "del", "priority", "100")
                relays.callback(relay.wait)
                relays.callback(relay.kill)
            yield

    def start(self) -> None:
        """Makes namespaces, keys and server; waits until the server listens."""
        self.join()
        for key in ("host", "user", "stranger"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", str(self.folder / key))
        shutil.copy(self.folder / "user.pub", self.folder / "authorized_keys")
        host_key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        names = (self.far_address, self.far_address6)
        (self.folder / "known_hosts").write_text("".join(f"[{name}]:{PORT} {host_key}\n" for name in names))
        (self.folder / "no_known_hosts").write_text("")
        self._start_server()

    def _start_server(self) -> None:
        config = self.folder / "sshd_config"
        config.write_text(
            f"Port {PORT}\nHostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/authorized_keys\n"
            "PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        )
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = (self.folder / "sshd.log").open("wb")
        sshd = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin") or "/usr/sbin/sshd"
        command = [*self.inside(self.far), sshd, "-D", "-e", "-f", str(config)]
        self.server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()
        wait_until(self._listens, 15, "the ssh server listens")

    def _listens(self) -> bool:
        return "Server listening on ::" in (self.folder / "sshd.log").read_text()

    def stop(self) -> None:
        """Ends all processes in the namespaces and removes the namespaces."""
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
        for name in (self.near, self.far):
            if not Path(f"/run/netns/{name}").exists():
                continue
            for pid in self.pids(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run("ip", "netns", "del", name)

    @classmethod
    @contextlib.contextmanager
    def of_a_test(cls, folder: Path, *, ssh: bool = True) -> Iterator[Hosts]:
        """Returns a context with two hosts, the far one with an ssh server, or with a link alone."""
        made = cls(folder)
        try:
            made.start() if ssh else made.join()
            yield made
        finally:
            made.stop()

    def inside(self, name: str) -> tuple[str, ...]:
        """Returns the prefix that runs a command in a namespace; the prefix leaves no process of its own."""
        return ("nsenter", f"--net=/run/netns/{name}", "--")

    def pids(self, name: str) -> list[int]:
        """Returns the processes in a namespace, except the ssh server and its sessions."""
        found = []
        for text in run("ip", "netns", "pids", name).split():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{text}/stat").read_text()
                command = stat[stat.index("(") + 1 : stat.rindex(")")]
                if command not in ("sshd", "ip") and stat.rpartition(")")[2].split()[0] != "Z":
                    found.append(int(text))
        return found

    def arguments(self, *, key: str = "user", known: str = "known_hosts", port: int = PORT) -> tuple[str, ...]:
        """Returns the options of sirtakirun that reach the far host."""
        extra = (
            f"-F none -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes "
            f"-o UserKnownHostsFile={self.folder}/{known} -o GlobalKnownHostsFile=/dev/null"
        )
        key_file = str(self.folder / key)
        return ("--ssh-port", str(port), "--ssh-identity-file", key_file, "--ssh-options", extra)
