"""A rank that lets a server (server.py) run its program; the launcher sees this process as the program.

`python -I -S client.py SOCKET SOCKET ARGUMENT...` sends its arguments, environment, folder, processors and open files
to the first server on even ranks and to the second on odd ones, forwards signals, and ends as the program does. The two
servers have different seeds of str.__hash__, so that neighbours differ in the order of their sets, as ranks of a real
job do. run_warm() is for interpreters that have begun (site/sitecustomize.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Mapping

#: Variables that imports of frameworks read: a program with others needs a new interpreter.
EARLY = re.compile(
    r"(OMP|MKL|KMP|GOMP|OPENBLAS|TORCH(?!INDUCTOR_CACHE_DIR|ELASTIC)[A-Z]*|PYTORCH|ATEN|TF|XLA|LD|CUDA|CUBLAS|NVIDIA|"
    r"MALLOC|LC)_|LANG|PYTHON(?!PATH|UNBUFFERED)"
)
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def open_files() -> list[int]:
    """Returns the descriptors that this process was given."""
    return [number for number in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{number}")]


def end_as(status: int) -> None:
    """Ends this process as `status`, a result of waitpid(), describes."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def forward(pid: int) -> None:
    """Forwards signals to the program, those that have come since request() began, too."""

    def pass_on(which: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # the program has ended, and its status is under way
            os.kill(pid, which)

    for number in FORWARDED:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def lost(address: str, why: str) -> None:
    """Exits with the last output of a server that does not answer."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    with open(f"{address}.log", errors="replace") as log:
        sys.exit(f"the warm interpreter at {address} runs no program: {why}; its last words:\n{log.read()[-4000:]}")


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that an import of a framework may read."""
    return {name: value for name, value in environment.items() if EARLY.match(name)}


def place(variables: dict[str, str]) -> dict[str, object]:
    """Returns the things of a process that a fork of a server cannot take over."""
    network = os.stat("/proc/self/ns/net").st_ino
    return {"interpreter": sys.executable, "network": network, "variables": variables}


def run_warm(addresses: list[str], arguments: list[str]) -> None:
    """Ends as the program does; returns if a new interpreter has to run it."""
    with open(f"{addresses[0]}.json", encoding="utf-8") as file:
        served = json.load(file)
    if served != place(early(os.environ)):
        return
    try:
        request(addresses, arguments)
    except BaseException:  # the program may have run, so this interpreter must not
        traceback.print_exc()
        os._exit(1)


def request(addresses: list[str], arguments: list[str]) -> None:
    """Sends the request to the server, then waits for the end of the program."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    files = open_files()
    rank = os.environ.get("SIRTAKI_JOB_RANK") or os.environ.get("RANK") or "0"
    address = addresses[int(rank) % 2]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
    except OSError as error:
        lost(address, str(error))
    header = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "processors": list(os.sched_getaffinity(0)),
        "files": files,
    }
    socket.send_fds(connection, [json.dumps(header).encode()], files)
    while message := connection.recv(100):
        kind, number = message.split()
        if kind == b"status":
            end_as(int(number))
        forward(int(number))
    lost(address, "it has gone")


if __name__ == "__main__":
    request(sys.argv[1:3], sys.argv[3:])
