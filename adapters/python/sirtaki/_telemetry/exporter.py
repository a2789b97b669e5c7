"""The endpoint for Prometheus: http://HOST:PORT/metrics, for all ranks of a job, with the option metrics.port.

Nothing is sent until somebody asks. The first rank of a host listens on the port, and asks the other ranks of the host
over sockets that have names but no files; rank 0 asks the first ranks of the other hosts at the same port. Each process
has one thread for this, which reads and never takes part in an operation.
"""

from __future__ import annotations

import hashlib
import json
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from typing import Any

from sirtaki import basics
from sirtaki._end_report import session
from sirtaki._telemetry.exposition import CONTENT_TYPE, exposition
from sirtaki._telemetry.metrics import Value, from_facts

#: Seconds for an answer of a rank or a host; Prometheus itself waits 10 s by default.
_PATIENCE = 2.0
#: Seconds after an error of accept().
_PAUSE = 0.1
_MAX_THREADS = 16

#: sirtaki.metrics() by rank.
Found = dict[int, dict[str, Value]]


class _Server:
    """A socket that listens, and a thread that answers one request after another."""

    def __init__(self, listener: socket.socket, handler: type[socketserver.BaseRequestHandler]) -> None:
        self._listener = listener
        self._handler = handler
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sirtaki-metrics", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError:
                # The client has gone, the process has no free descriptor, or close() wakes the thread up.
                self._closed.wait(_PAUSE)
                continue
            # Neither a client that goes away nor a session that fails may end the thread.
            with connection, suppress(Exception):
                connection.settimeout(_PATIENCE)
                self._handler(connection, address, self)  # type: ignore[arg-type]

    def close(self) -> None:
        """Stops answering. Waits for an answer that is being made."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        self._listener.close()
        self._thread.join(_PATIENCE)


class HostExporter:
    """Answers HTTP requests on a host: /metrics for Prometheus, /ranks for rank 0.

    Used by the first rank of a host. `own` returns the metrics of the ranks of this host, `hosts` are addresses
    (name, port) of the other hosts, and `ranks` are number and host of every rank to show.
    """

    def __init__(
        self, port: int, ranks: Sequence[tuple[int, str]], own: Callable[[], Found], hosts: Sequence[tuple[str, int]]
    ) -> None:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE

            def do_GET(self) -> None:
                exporter.answer(self)

            def log_message(self, *_: Any) -> None:
                """Logs nothing: standard error belongs to the program."""

        self._own, self._hosts, self._ranks = own, hosts, ranks
        listener = _listen(port)
        self.port: int = listener.getsockname()[1]
        self._server = _Server(listener, Handler)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answers a request."""
        kind, body, code = "text/plain; charset=utf-8", "Metrics are at /metrics\n", 404
        path = request.path.partition("?")[0]
        try:
            if path == "/ranks":
                kind, body, code = "application/json", json.dumps(self._own()), 200
            elif path == "/metrics":
                kind, body, code = CONTENT_TYPE, exposition(self._ranks, self._all()), 200
        except Exception as error:
            body, code = f"{type(error).__name__}: {error}\n", 500
        data = body.encode()
        request.send_response(code)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _all(self) -> Found:
        found = self._own()
        for others in _together(lambda host: ask_host(*host), self._hosts):
            found |= others
        return found

    def close(self) -> None:
        """Stops answering."""
        self._server.close()


class RankExporter:
    """Answers the first rank of its host, once per connection, with the metrics of this rank."""

    def __init__(self, name: str, own: Callable[[], Found]) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write(json.dumps(own()).encode())

        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        listener.listen()
        self._server = _Server(listener, Handler)

    def close(self) -> None:
        """Stops answering."""
        self._server.close()


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _together(ask: Callable[[Any], Found], places: Sequence[Any]) -> Iterable[Found]:
    """Returns the answers of all places, which are asked at the same time."""
    if not places:
        return []
    with ThreadPoolExecutor(min(_MAX_THREADS, len(places)), "sirtaki-metrics") as pool:
        return list(pool.map(ask, places))


def ask_host(host: str, port: int) -> Found:
    """Returns the metrics of the ranks of another host; {} if it does not answer."""
    with suppress(OSError, HTTPException, ValueError):
        connection = HTTPConnection(host, port, timeout=_PATIENCE)
        try:
            connection.request("GET", "/ranks")
            return _decoded(connection.getresponse().read())
        finally:
            connection.close()
    return {}


def ask_rank(name: str) -> Found:
    """Returns the metrics of a rank of this host; {} if it does not answer."""
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(name)
        return _decoded(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
    return {}


def _decoded(data: bytes) -> Found:
    return {int(rank): values for rank, values in json.loads(data).items()}


def _own_metrics() -> Found:
    # This is not the thread of the optimizers, so local updates are as of the last reading.
    return {basics.rank(): from_facts(basics.stats(), session.totals_now(), session.last_local)}


class Exporter:
    """The part of this process in the endpoint of its job. The package begins and ends it with each session."""

    def __init__(self) -> None:
        self._server: HostExporter | RankExporter | None = None

    def begin(self) -> None:
        """Begins to answer, if metrics.port is set. Never raises: training goes on without metrics."""
        try:
            port = int(basics.option("metrics.port"))
            if port > 0:
                self._server = self._made(port)
        except Exception as error:
            # A program may have closed standard error.
            with suppress(Exception):
                sys.stderr.write(f"sirtaki: warning: rank {basics.rank()} has no metrics (metrics.port): {error}\n")
                sys.stderr.flush()

    def renew(self) -> None:
        """Begins again, because ranks have new numbers. Never raises."""
        self.end()
        self.begin()

    def end(self) -> None:
        """Stops answering. Never raises."""
        server, self._server = self._server, None
        if server is not None:
            with suppress(Exception):
                server.close()

    @staticmethod
    def _made(port: int) -> HostExporter | RankExporter:
        members, rank = basics.members(), basics.rank()
        here = [member for member in members if member["host_id"] == members[rank]["host_id"]]
        if here[0]["rank"] != rank:
            return RankExporter(_socket_name(members, rank), _own_metrics)
        names = [_socket_name(members, member["rank"]) for member in here[1:]]

        def of_host() -> Found:
            found = _own_metrics()
            for other in _together(ask_rank, names):
                found |= other
            return found

        firsts: dict[str, dict[str, Any]] = {}
        for member in members:
            firsts.setdefault(member["host_id"], member)
        others = [(member["hostname"], port) for member in firsts.values() if member["rank"] != rank]
        shown = members if rank == 0 else here
        ranks = [(member["rank"], member["hostname"]) for member in shown]
        return HostExporter(port, ranks, of_host, others if rank == 0 else [])


def _socket_name(members: list[dict[str, Any]], rank: int) -> str:
    """Returns the name of the socket of a rank; no other job on the host has the same one."""
    job = hashlib.sha256(f"{members[0]['host_id']} {members[0]['pid']}".encode()).hexdigest()[:16]
    return f"\0sirtaki-metrics-{job}-{rank}"


#: The exporter of this process.
exporter = Exporter()
