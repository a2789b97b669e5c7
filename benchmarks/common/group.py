"""A job of P worker processes, one a rank, in one interpreter, on a network of namespaces or on loopback.

Owned by: the main process of a benchmark, one thread. Requests go to all ranks at once; answers have a deadline, and
the error for a worker that dies or fails names its rank and shows the end of its log. Does not: choose measurements.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.common.worker import CONTROL_FD
from benchmarks.netns import INTERFACE, Net
from benchmarks.results import ROOT

#: Folders outside the project from which workers may import systems.
EXTRA_PYTHONPATH: tuple[str, ...] = ()
_START_TIMEOUT = 180.0


class GroupError(RuntimeError):
    """A worker died, failed or did not answer in time."""


def free_port() -> int:
    """Returns a port that was free on loopback a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _named_host(address: str, command: list[str]) -> list[str]:
    # Horovod contexts for process sets ignore HOROVOD_GLOO_IFACE and listen on the address of the host name.
    rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
    return ["unshare", "--uts", "--", "sh", "-c", rename, address, *command]


class Group:
    """P workers with the same systems; a context manager."""

    def __init__(self, size: int, systems: list[str], *, net: Net | None = None, python: str = sys.executable) -> None:
        self.size = size
        self.systems = systems
        self._net = net
        self._per_node = 1 if net is None else max(1, size // net.nodes)
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._workers: list[subprocess.Popen[bytes]] = []
        self._channels: list[socket.socket] = []
        self._buffers: list[bytes] = []
        self._calls = 0
        self._helper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Group:
        try:
            shared = self._shared_environment()
            for rank in range(self.size):
                self._spawn(rank, shared)
            for rank in range(self.size):
                place = {"rank": rank, "size": self.size, "folder": self._folder.name}
                self._send(rank, place)
            self.call("ping", timeout=_START_TIMEOUT)
            for system in self.systems:
                self.call("start", timeout=_START_TIMEOUT, system=system)
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
        if kind is None:
            with contextlib.suppress(GroupError):
                self.call("stop", timeout=30)
        self.close()

    def close(self) -> None:
        """Ends the workers, including those that do not answer. Idempotent."""
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        deadline = time.monotonic() + 3
        for process in [*self._workers, *([self._helper] if self._helper else [])]:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            if process is self._helper:
                process.terminate()
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._workers.clear()
        self._helper = None
        self._folder.cleanup()

    # ---- starting --------------------------------------------------------------------------

    def _command(self, node: int, command: list[str]) -> list[str]:
        return command if self._net is None else self._net.command(node, command)

    def _address(self, rank: int) -> str:
        return "127.0.0.1" if self._net is None else self._net.address(rank // self._per_node)

    def _shared_environment(self) -> dict[str, str]:
        interface = "lo" if self._net is None else INTERFACE
        shared = {
            "OMP_NUM_THREADS": "1",  # the ranks share the cores of one machine
            "PYTHONPATH": os.pathsep.join(
                [str(ROOT), *EXTRA_PYTHONPATH, *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
            "GLOO_SOCKET_IFNAME": interface,
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": self._address(0),
        }
        if any(system.startswith("sirtaki") for system in self.systems):
            secret = Path(self._folder.name) / "secret"
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_hex(32))
            shared["SIRTAKI_JOB_SECRET_FILE"] = str(secret)
            shared["SIRTAKI_JOB_RENDEZVOUS"] = f"{self._address(0)}:{free_port()}"
        if "horovod" in self.systems:
            shared |= self._start_horovod_server(interface)
        return shared

    def _start_horovod_server(self, interface: str) -> dict[str, str]:
        firsts = range(0, self.size, self._per_node)
        hosts = [f"{self._address(rank)}:{self._per_node}" for rank in firsts]
        plan = ",".join(hosts) if self._net else f"127.0.0.1:{self.size}"
        command = [self._python, "-m", "benchmarks.baselines.horovod_server", plan, str(self.size)]
        log = Path(self._folder.name) / "rendezvous.log"
        with log.open("wb") as out:
            self._helper = subprocess.Popen(self._command(0, command), stdout=subprocess.PIPE, stderr=out, cwd=ROOT)
        assert self._helper.stdout is not None
        port = self._helper.stdout.readline().decode().strip()
        if not port.isdigit():
            raise GroupError(f"horovod's rendezvous server did not start: {log.read_text()[-2000:]}")
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self._address(0),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": interface,
            # Ranks are stopped while another system is measured; Horovod must not take that for a failure.
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "3600",
        }

    def _rank_environment(self, rank: int) -> dict[str, str]:
        local_size = self.size if self._net is None else self._per_node
        local, cross, cross_size = rank % local_size, rank // local_size, self.size // local_size
        environment = {"RANK": str(rank), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(local_size)}
        environment["SIRTAKI_REPORT_END"] = "false"
        if "horovod" not in self.systems:
            return environment
        return environment | {
            "HOROVOD_HOSTNAME": self._address(rank),
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(self.size),
            "HOROVOD_LOCAL_RANK": str(local),
            "HOROVOD_LOCAL_SIZE": str(local_size),
            "HOROVOD_CROSS_RANK": str(cross),
            "HOROVOD_CROSS_SIZE": str(cross_size),
        }

    def _spawn(self, rank: int, shared: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **shared, **self._rank_environment(rank)}
        environment[CONTROL_FD] = str(theirs.fileno())
        command = [self._python, "-m", "benchmarks.common.worker"]
        if self._net is not None and "horovod" in self.systems:
            command = _named_host(self._address(rank), command)
        with self._log(rank).open("wb") as out:
            worker = subprocess.Popen(
                self._command(rank // self._per_node, command),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
            )
        theirs.close()
        self._workers.append(worker)
        self._channels.append(ours)
        self._buffers.append(b"")

    # ---- requests --------------------------------------------------------------------------

    def call(self, what: str, timeout: float = 120.0, **arguments: Any) -> list[Any]:
        """Sends the same request to every rank and returns the answers by rank; raises the first error."""
        self._calls += 1
        for rank in range(self.size):
            self._send(rank, {"id": self._calls, "do": what, **arguments})
        deadline = time.monotonic() + timeout
        answers: list[Any] = [None] * self.size
        waiting = set(range(self.size))
        while waiting:
            rank, reply = self._next(waiting, deadline, what)
            waiting.discard(rank)
            if "error" in reply:
                raise GroupError(f"'{what}' on rank {rank}: {reply['error']}")
            answers[rank] = reply["ok"]
        return answers

    def pause(self) -> None:
        """Suspends the workers, so that a system that polls takes no processor time from another."""
        for worker in self._workers:
            worker.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resumes the suspended workers."""
        for worker in self._workers:
            worker.send_signal(signal.SIGCONT)

    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [worker.pid for worker in self._workers]

    def _send(self, rank: int, message: dict[str, Any]) -> None:
        try:
            self._channels[rank].sendall((json.dumps(message) + "\n").encode())
        except OSError as error:
            raise GroupError(f"rank {rank} is gone ({error}): {self._log_end(rank)}") from None

    def _next(self, waiting: set[int], deadline: float, what: str) -> tuple[int, dict[str, Any]]:
        while True:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._channels[rank] for rank in waiting], [], [], max(0.0, left))
            if not readable:
                ends = "\n".join(f"rank {rank}: {self._log_end(rank)}" for rank in sorted(waiting))
                raise GroupError(f"'{what}': no answer from ranks {sorted(waiting)} in time\n{ends}")
            rank = self._channels.index(readable[0])
            chunk = readable[0].recv(1 << 20)
            if not chunk:
                status = self._workers[rank].poll()
                raise GroupError(f"rank {rank} died in '{what}' (status {status}): {self._log_end(rank)}")
            *lines, self._buffers[rank] = (self._buffers[rank] + chunk).split(b"\n")
            for line in lines:
                reply: dict[str, Any] = json.loads(line)
                # An answer to an earlier request, whose deadline has passed, is dropped.
                if reply["id"] == self._calls:
                    return rank, reply

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank{rank}.log"

    def _log_end(self, rank: int) -> str:
        try:
            return self._log(rank).read_text(errors="replace")[-2000:].strip() or "(no output)"
        except OSError:
            return "(no log)"
