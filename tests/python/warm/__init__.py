"""Warm interpreters, which have imported a framework: test programs start in milliseconds, each in its own process.

Owner: rank_support.pool(). The servers (server.py) of a framework start with the first program that needs them and end
with pytest.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from warm.client import early, place

HERE = Path(__file__).resolve().parent
CLIENT = (sys.executable, "-I", "-S", str(HERE / "client.py"))
#: Modules that are imported before a program starts. An optimizer of torch imports torch._dynamo, which takes as long
#: as torch.
IMPORTS = {
    "torch": ("torch", "torch._dynamo"),
    "tensorflow": ("tensorflow", "keras"),
    "keras on torch": ("torch", "torch._dynamo", "keras"),
}


def framework(program: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Returns the row of IMPORTS for a program (a file, `-c TEXT` or `-m ranks.runner MODULE`) by names in its text."""
    path = f"ranks/{program[2].replace('.', '/')}.py" if program[0] == "-m" else program[0]
    text = program[1] if program[0] == "-c" else Path(HERE.parent, path).read_text()
    if "keras" in text and environment.get("KERAS_BACKEND") == "torch":
        return "keras on torch"
    return "tensorflow" if "tensorflow" in text or "keras" in text else "torch"


class Server:
    """One server: its process, its socket and its output, `SOCKET.log`."""

    def __init__(self, path: Path, modules: tuple[str, ...], environment: Mapping[str, str]) -> None:
        self.path = path
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(f"{path}.log", "wb") as log:
            # The socket listens before the server has imported its modules, so that ranks can connect early.
            listener.bind(str(path))
            listener.listen(64)
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "server.py"), str(listener.fileno()), *modules],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
            )


class Pool:
    """Two servers for each framework, one for even and one for odd ranks."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="warm."))
        self.servers: dict[str, tuple[Server, Server]] = {}
        self.environment: dict[str, str] = {}
        atexit.register(self.close)

    def command(self, program: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, ...]:
        """Returns a command that runs `python *program` in a warm interpreter.

        A program whose environment differs in a variable that an import may read gets the command of a new interpreter.
        """
        if early(environment) != (self.environment or early(environment)):
            return (sys.executable, *program)
        return (*CLIENT, *self.addresses(framework(program, environment), environment), *program)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Returns variables with which the ranks of all launchers run in warm interpreters, if they need torch."""
        addresses = self.addresses("torch", environment)
        Path(f"{addresses[0]}.json").write_text(json.dumps(place(self.environment)))
        path = os.pathsep.join([str(HERE / "site"), environment["PYTHONPATH"]])
        return {"PYTHONPATH": path, "WARM_SERVERS": os.pathsep.join([str(HERE), *addresses])}

    def addresses(self, name: str, environment: Mapping[str, str]) -> tuple[str, ...]:
        """Returns the sockets of the servers of a row of IMPORTS, which start with the first request."""
        self.environment = self.environment or early(environment)
        if name not in self.servers:
            # The entry points that torch loads on import look for a launcher; the ranks of one write without a buffer.
            own = {**environment, "SIRTAKI_JOB_RANK": "0", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
            own.pop("WARM_SERVERS", None)
            paths = [self.folder / f"{len(self.servers)}.{parity}" for parity in ("even", "odd")]
            even, odd = (Server(path, IMPORTS[name], own) for path in paths)
            self.servers[name] = (even, odd)
        return tuple(str(server.path) for server in self.servers[name])

    def close(self) -> None:
        """Ends all servers and the programs that still run in them."""
        for server in (one for pair in self.servers.values() for one in pair):
            server.process.kill()
            server.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
