"""Messages of the runtime in Python's logging, and as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest
from rank_support import launch

torch = pytest.importorskip("torch")

import sirtaki.torch as hvd  # noqa: E402
from sirtaki._telemetry.logs import LogPipe  # noqa: E402
from sirtaki.basics import option  # noqa: E402

#: The runtime has a message at level info for the rounds of local updates.
PROGRAM = """
import logging, sys, torch
import sirtaki.torch as hvd
logging.basicConfig(format="%(name)s/%(levelname)s/%(sirtaki_rank)s %(message)s", stream=sys.stdout)
hvd.init()
model = torch.nn.Linear(8, 4)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), local_updates=2)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
optimizer.drain()
hvd.shutdown()
"""


def fields(line: str) -> set[str]:
    return set(json.loads(line))


def test_messages_are_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    options = ("--log-level", "info", "--log-file", str(path), "--log-format", "json")
    done = launch(2, "-c", PROGRAM, options=options, warm=True)
    assert done.returncode == 0, done.stdout
    lines = path.read_text().splitlines()
    assert lines
    assert all(fields(line) == {"time", "level", "rank", "message"} for line in lines)
    assert {json.loads(line)["rank"] for line in lines} == {0, 1}


def test_messages_go_to_the_logging_of_python() -> None:
    options = ("--log-level", "info", "--log-python", "true")
    done = launch(2, "-c", PROGRAM, options=options, warm=True)
    assert done.returncode == 0, done.stdout
    # Logging has no messages at level info unless the program wants them.
    assert "sirtaki/INFO" not in done.stdout
    assert "info: " not in done.stdout, "the runtime does not write to standard error"
    wanted = PROGRAM.replace("hvd.init()", 'logging.getLogger("sirtaki").setLevel(logging.INFO); hvd.init()')
    done = launch(2, "-c", wanted, options=options, warm=True)
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        assert f"[{rank}] sirtaki/INFO/{rank} rank {rank}: " in done.stdout, done.stdout


def test_each_session_has_a_pipe_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        hvd.init(options={"log.python": True, "log.level": "debug"})
        hvd.shutdown()
    with pytest.raises(ValueError, match=r"log\.level"):
        hvd.init(options={"log.python": True, "log.level": "nonsense"})
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "sirtaki-log"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("value", [True, 1, "true", "yes", "on", "1", False, 0, "false", "no", "off", "0"])
def test_every_spelling_of_the_runtime_is_accepted(value: object) -> None:
    hvd.init(options={"log.python": value})
    try:
        reads = [thread for thread in threading.enumerate() if thread.name == "sirtaki-log"]
        assert bool(reads) == (option("log.python") == "true")
    finally:
        hvd.shutdown()


def test_every_message_is_passed_on_with_its_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1, logger="sirtaki")
    pipe = LogPipe()
    descriptor = pipe.options["log.fd"]
    assert isinstance(descriptor, int)
    for level in ("trace", "debug", "info", "warn", "error"):
        os.write(descriptor, json.dumps({"level": level, "rank": 3, "message": f"a {level} %s"}).encode() + b"\n")
    os.write(descriptor, b'{"level": "error", "message": "no rank"}\n{"cut\n')
    pipe.close()
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert said == [
        (5, "rank 3: a trace %s"),
        (logging.DEBUG, "rank 3: a debug %s"),
        (logging.INFO, "rank 3: a info %s"),
        (logging.WARNING, "rank 3: a warn %s"),
        (logging.ERROR, "rank 3: a error %s"),
        (logging.ERROR, "no rank"),
        (logging.WARNING, '{"cut'),
    ]
    assert [record.sirtaki_rank for record in caplog.records[:1]] == [3]  # type: ignore[attr-defined]


def test_a_full_pipe_drops_messages_and_blocks_nobody() -> None:
    pipe, go_on = LogPipe(), threading.Event()
    handler = logging.Handler()
    handler.emit = lambda _: go_on.wait(60)  # type: ignore[assignment]
    logger = logging.getLogger("sirtaki")
    logger.addHandler(handler)
    try:
        descriptor = pipe.options["log.fd"]
        assert isinstance(descriptor, int)
        line = json.dumps({"level": "error", "message": "x" * 4000}).encode() + b"\n"
        with pytest.raises(BlockingIOError):
            [os.write(descriptor, line) for _ in range(10_000)]
    finally:
        go_on.set()
        pipe.close()
        logger.removeHandler(handler)


def test_a_cut_message_does_not_hide_the_end(caplog: pytest.LogCaptureFixture) -> None:
    pipe = LogPipe()
    descriptor = pipe.options["log.fd"]
    assert isinstance(descriptor, int)
    held = os.dup(descriptor)  # as in a forked process
    try:
        os.write(descriptor, b'{"cut')
        pipe.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "sirtaki-log"]
        assert [record.getMessage() for record in caplog.records] == ['{"cut']
    finally:
        os.close(held)
