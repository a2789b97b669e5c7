"""The endpoint for Prometheus: one rank, two ranks, other hosts."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_text import of, parsed
from rank_support import launch

torch = pytest.importorskip("torch")

import sirtaki.torch as hvd  # noqa: E402
from sirtaki._telemetry import exporter  # noqa: E402
from sirtaki._telemetry.exporter import HostExporter, RankExporter, ask_host, ask_rank  # noqa: E402
from sirtaki._telemetry.exposition import CONTENT_TYPE  # noqa: E402

TRAINED = """
import http.client, torch
import sirtaki.torch as hvd
import sirtaki

hvd.init()
model = torch.nn.Linear(64, 8)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), local_updates=2)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
optimizer.drain()
port = int(next(row["value"] for row in sirtaki.options() if row["name"] == "metrics.port"))
listens = hvd.rank() == 0
if listens:
    connection = http.client.HTTPConnection("localhost", port)
    connection.request("GET", "/metrics")
    print(connection.getresponse().read().decode(), flush=True)
hvd.barrier()
hvd.shutdown()
# The other rank may end before the one that listens.
if hvd.is_initialized() or listens and __import__("socket").socket().connect_ex(("127.0.0.1", port)) == 0:
    print("STILL OPEN", flush=True)
"""


def free_port() -> int:
    with socket.create_server(("", 0)) as found:
        port: int = found.getsockname()[1]
    return port


def get(port: int, path: str) -> tuple[int, str, str]:
    connection = HTTPConnection("localhost", port, timeout=20)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.getheader("Content-Type", ""), body


@pytest.fixture
def closing() -> Iterator[list[HostExporter | RankExporter]]:
    opened: list[HostExporter | RankExporter] = []
    yield opened
    for one in opened:
        one.close()


def test_the_first_rank_of_a_job_shows_all_ranks_and_hosts(closing: list[HostExporter | RankExporter]) -> None:
    name = f"\0sirtaki-test-{free_port()}"
    closing.append(RankExporter(name, lambda: {1: {"steps": 11}}))
    other = HostExporter(0, [(2, "b")], lambda: {2: {"steps": 12}}, [])
    closing.append(other)
    ranks = [(0, "a"), (1, "a"), (2, "b"), (3, "c")]
    own = HostExporter(
        0, ranks, lambda: {0: {"steps": 10}, **ask_rank(name)}, [("localhost", other.port), ("localhost", free_port())]
    )
    closing.append(own)
    for _ in range(2):
        status, kind, text = get(own.port, "/metrics")
        assert (status, kind) == (200, CONTENT_TYPE)
        found = parsed(text)
        assert found["sirtaki_up"] == {of(0): 1, of(1): 1, of(2, "b"): 1, of(3, "c"): 0}
        assert found["sirtaki_steps_total"] == {of(0): 10, of(1): 11, of(2, "b"): 12}
    assert get(own.port, "/")[0] == 404
    assert get(own.port, "/ranks")[0] == 200


def test_neither_errors_nor_silent_clients_end_the_endpoint(closing: list[HostExporter | RankExporter]) -> None:
    answers = iter([1, 0, 1])
    own = HostExporter(0, [(0, "a")], lambda: {0: {"steps": 1 // next(answers)}}, [])
    closing.append(own)
    socket.create_connection(("localhost", own.port)).close()
    assert get(own.port, "/metrics")[0] == 200
    assert get(own.port, "/metrics") == (500, "text/plain; charset=utf-8", "ZeroDivisionError: " + _zero_division())
    assert get(own.port, "/metrics")[0] == 200
    own.close()
    closing.clear()
    assert ask_host("localhost", own.port) == {}
    assert ask_rank("\0sirtaki-test-nobody") == {}


class Stumbling:
    """A listener whose first accept() fails."""

    def __init__(self, listener: socket.socket, number: int) -> None:
        self._listener = listener
        self._errors = [OSError(number, os.strerror(number))]

    def accept(self) -> tuple[socket.socket, Any]:
        if self._errors:
            raise self._errors.pop()
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ECONNABORTED])
def test_a_failed_accept_does_not_end_the_endpoint(
    number: int, closing: list[HostExporter | RankExporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = exporter._listen
    monkeypatch.setattr(exporter, "_listen", lambda port: Stumbling(listen(port), number))
    closing.append(HostExporter(0, [(0, "a")], lambda: {0: {"steps": 1}}, []))
    assert get(closing[0].port, "/metrics")[0] == 200  # type: ignore[union-attr]


def _zero_division() -> str:
    try:
        return str(1 // 0)
    except ZeroDivisionError as error:
        return f"{error}\n"


def test_a_job_has_one_endpoint() -> None:
    done = launch(2, "-c", TRAINED, options=("--metrics-port", str(free_port()), "--no-tag-output"), warm=True)
    assert done.returncode == 0, done.stdout
    assert "STILL OPEN" not in done.stdout
    lines = (line for line in done.stdout.splitlines() if re.match(r"# (HELP|TYPE)|sirtaki_", line))
    found = parsed("".join(f"{line}\n" for line in lines))
    host = dict(next(iter(found["sirtaki_up"])))["host"]
    assert found["sirtaki_up"] == {of(0, host): 1, of(1, host): 1}
    assert found["sirtaki_steps_total"] == {of(0, host): 6, of(1, host): 6}
    assert found["sirtaki_local_interval"].keys() == {of(0, host), of(1, host)}


def test_a_port_in_use_is_told_and_training_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        hvd.init(options={"metrics.port": taken.getsockname()[1]})
        assert "warning: rank 0 has no metrics (metrics.port): " in capfd.readouterr().err
        assert hvd.allreduce(torch.ones(1)).item() == 1
        hvd.shutdown()
