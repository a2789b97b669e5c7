"""An interpreter that has imported a framework and forks itself for every rank that asks.

`python server.py DESCRIPTOR MODULE...` imports the modules, then serves the listening socket DESCRIPTOR until its
standard input ends. A rank (client.py) sends its arguments, its environment and its open files. The fork takes them
over and runs the program to the end of the interpreter, as a new interpreter would: every program has its own process,
and only imports are shared. A server needs to be single-threaded, as it is after importing torch or TensorFlow.
Programs that test the process itself (signals, parents, the first import) need a new interpreter.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_FILES = 64
#: Files of a rank are parked at this number and above until those of the server are closed.
PARKED = 512
PR_SET_PDEATHSIG = 1

libc = ctypes.CDLL(None)


@dataclass
class Request:
    """Connection of a rank and its message: a JSON header, and files by their numbers in the server."""

    connection: socket.socket
    header: dict[str, Any]
    files: list[int]


def receive(connection: socket.socket) -> Request | None:
    """Returns the request of a rank, or None if the rank ended before it sent one."""
    files = array.array("i")
    data, ancillary, _flags, _address = connection.recvmsg(1 << 20, socket.CMSG_SPACE(MOST_FILES * files.itemsize))
    for _level, _kind, raw in ancillary:
        files.frombytes(raw[: len(raw) - len(raw) % files.itemsize])
    return Request(connection, json.loads(data), files.tolist()) if data else None


class Server:
    """Forks for each request, and reports to each rank the exit status of its fork."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.events = selectors.DefaultSelector()
        self.connections: dict[int, socket.socket] = {}  # by pid of the fork, like lives
        self.lives: dict[int, int] = {}
        self.ended = False

    def serve(self) -> Request | None:
        """Returns the request in the fork that must run it; returns None in the server at its end."""
        self.events.register(self.listener, selectors.EVENT_READ, self.accept)
        self.events.register(sys.stdin, selectors.EVENT_READ, self.end)
        while not self.ended:
            for key, _ in self.events.select():
                request = key.data()
                if request is not None:
                    return request
        return None

    def end(self) -> None:
        """Makes serve() return: the parent process is gone. The forks end with this process."""
        self.ended = True

    def accept(self) -> Request | None:
        """Forks for the next rank; returns the request in the fork."""
        connection, _ = self.listener.accept()
        request = receive(connection)
        if request is None:
            connection.close()
            return None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != server:
                os._exit(1)
            self.leave()
            return request
        for file in request.files:
            os.close(file)
        self.connections[pid], self.lives[pid] = connection, os.pidfd_open(pid)
        self.events.register(self.lives[pid], selectors.EVENT_READ, lambda: self.reap(pid))
        self.events.register(connection, selectors.EVENT_READ, lambda: self.kill(pid))
        with contextlib.suppress(OSError):
            connection.send(f"pid {pid}".encode())
        return None

    def kill(self, pid: int) -> None:
        """Kills the fork of a rank that was killed, unless the fork has ended at the same moment."""
        if pid not in self.connections:
            return
        self.events.unregister(self.connections[pid])
        os.kill(pid, signal.SIGKILL)

    def reap(self, pid: int) -> None:
        """Reports to a rank the exit status of its fork."""
        connection, life = self.connections.pop(pid), self.lives.pop(pid)
        _, status = os.waitpid(pid, 0)
        self.events.unregister(life)
        os.close(life)
        with contextlib.suppress(KeyError):
            self.events.unregister(connection)
        with contextlib.suppress(OSError):
            connection.send(f"status {status}".encode())
        connection.close()

    def leave(self) -> None:
        """Closes the descriptors of the server in a fork."""
        for connection in self.connections.values():
            connection.close()
        for life in self.lives.values():
            os.close(life)
        self.listener.close()
        self.events.close()


def take_files(request: Request) -> None:
    """Gives the files of a rank the numbers that they have in the rank."""
    parked = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, PARKED) for file in request.files]
    for file in request.files:
        os.close(file)
    request.connection.close()
    for file, number in zip(parked, request.header["files"], strict=True):
        os.dup2(file, number)
        os.close(file)


def take_place(request: Request, known_paths: list[str]) -> list[str]:
    """Takes over files, variables and folder of a rank; returns its arguments."""
    take_files(request)
    os.environ.clear()
    os.environ.update(request.header["environment"])
    os.sched_setaffinity(0, request.header["processors"])
    os.chdir(request.header["folder"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in known_paths]
    if "numpy.random" in sys.modules:
        # A new process has its own random seed; a fork would share the seed of its server.
        sys.modules["numpy.random"].seed()
    return request.header["arguments"]


def run(arguments: list[str]) -> None:
    """Runs `-m MODULE ...`, `-c TEXT ...` or `FILE ...` as the main program."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    if arguments[0] == "-c":
        name, text = "<string>", arguments[1]
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
    else:
        name = main_module.__file__ = arguments[0]
        text = Path(name).read_text()
        sys.argv = arguments
        sys.path.insert(0, str(Path(name).resolve().parent))
    exec(compile(text, name, "exec", dont_inherit=True), main_module.__dict__)


def main() -> None:
    """Serves requests. In a fork: runs the program of the rank, then returns so that the interpreter ends."""
    listener, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    del sys.path[0]
    known_paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    # Imported objects live on; with gc.freeze() collections in the forks do not touch them, which would copy their
    # pages.
    gc.freeze()
    request = Server(listener).serve()
    if request is not None:
        run(take_place(request, known_paths))


if __name__ == "__main__":
    main()
