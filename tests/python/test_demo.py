"""Summary lines of the demo about its trainings and its loss of a rank, tested without training."""

from __future__ import annotations

import importlib
import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[2] / "scripts/demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    return module


def training(seconds: float, accuracy: float, raw: float, wire: float) -> dict[str, Any]:
    epoch = {"loss": 0.3, "accuracy": accuracy, "seconds": seconds, "exposed_seconds": 0.0}
    stats = {"streams.raw_bytes": raw, "streams.wire_bytes": wire, "peers": [{"bytes_sent": wire}]}
    return {"ranks": 4, "steps_per_epoch": 100, "epochs": [epoch, epoch], "stats": stats}


def test_auto_stands_beside_dense_in_one_line(demo: ModuleType) -> None:
    line = demo.compressed_line(training(8.0, 0.9, 1e9, 1e9), training(4.0, 0.89, 1e9, 4e7))
    assert line == (
        "40.0 ms a step, dense 80.0 ms (2.00x); gradients in 1/25.0 of the bytes; accuracy 89.00%, dense 90.00%"
    )


def test_an_accuracy_far_below_plain_training_is_said(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    plain = training(9.0, 0.9, 0.0, 0.0)
    for accuracy, well in ((0.88, True), (0.8, False)):
        auto = training(4.0, accuracy, 1e9, 1e8)
        assert demo.print_near("compression=auto", "fast", plain, auto) is well
        told = capsys.readouterr().out
        assert "compression=auto: fast" in told
        assert ("something is wrong" in told) is not well


def test_local_updates_stand_beside_dense_in_one_line(demo: ModuleType) -> None:
    how = {"mode": "local", "interval": 8, "delay": 2, "reason": "link"}
    local = {**training(2.0, 0.9, 1e9, 1e8), "local": how}
    assert demo.local_line(training(8.0, 0.9, 1e9, 1e9), local) == (
        "20.0 ms a step, dense 80.0 ms (4.00x); 1/10.0 of the bytes; accuracy 90.00%, dense 90.00%; at the end local, "
        "8 steps between merges, 2 of them while one is on its way (link)"
    )


def ranks(demo: ModuleType, **curves: list[list[float]]) -> Any:
    names = ("training", "compressed", "local", "ddp", "powersgd")
    reports = {name: {"curve": curves.get(name, [[1.0, 9.0, 1]])} for name in names}
    return demo.Ranks(links=[], overlap={}, **reports)


def test_the_race_shows_steps_and_losses_from_the_first_step_and_seconds_to_the_last_loss_of_ddp(
    demo: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.print_race(
        ranks(
            demo,
            ddp=[[0.5, 2.3, 1], [1.5, 2.0, 2], [15.2, 0.8, 30]],
            powersgd=[[0.9, 2.1, 2], [6.0, 0.7, 15], [15.1, 0.5, 40]],
            compressed=[[1.0, 1.5, 4], [4.0, 0.8, 16], [12.0, 0.4, 100]],
            local=[[1.25, 2.2, 5], [3.0, 0.81, 15]],
        )
    )
    assert capsys.readouterr().out.splitlines()[1:] == [
        "after the first seconds of training: steps, and the loss (mean over the ranks and the last 20 steps)",
        "                              1 s          2 s          5 s         10 s         15 s",
        "  DDP                   1   2.300    2   2.000    2   2.000    2   2.000    2   2.000",
        "  PowerSGD rank 4       2   2.100    2   2.100    2   2.100   15   0.700   15   0.700",
        "  compression=auto      4   1.500    4   1.500   16   0.800   16   0.800            -",
        "  both auto                     -    5   2.200            -            -            -",
        "  seconds to loss 0.800: DDP 15.2, PowerSGD rank 4 6.0, compression=auto 4.0, both auto not in 3.0",
    ]


def test_a_busy_machine_is_said(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.os, "cpu_count", lambda: 2)
    for load, busy in ((3.0, False), (3.1, True)):
        monkeypatch.setattr(demo.os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        line = demo.busy_line()
        assert (line is not None) is busy
        assert line is None or ("load average 3.1 on 2 cores" in line and "not comparable" in line)


@pytest.fixture
def training_program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(DEMO.parents[1] / "examples"))
    return importlib.import_module("demo_fashion_mnist")


def test_a_curve_is_a_running_mean_of_few_points_whose_clock_stops_between_passes(
    training_program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(training_program.time, "perf_counter", lambda: clock[0])
    curve = training_program.Curve()
    for _ in range(2):
        clock[0] += 50.0
        curve.resume()
        for _ in range(500):
            clock[0] += 0.25
            curve.add(float(curve.steps))
    points = curve.points(training_program.Plain())
    assert len(points) == 334
    assert points[-1] == (250.0, 989.5, 1000)
    assert points[0] == (0.25, 0.0, 1)
    assert points[4] == (3.25, 6.0, 13)


@pytest.fixture
def elastic(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    monkeypatch.delitem(sys.modules, "demo_elastic", raising=False)
    return importlib.import_module("demo_elastic")


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_the_rank_is_killed_and_the_next_epoch_is_timed(elastic: ModuleType, victim: subprocess.Popen[bytes]) -> None:
    story = elastic.Story(kill_after=0.0)
    assert story.line("[0] rank 0 of 4 is process 1; step 0", 0.0)
    assert not story.line(f"[2] rank 2 of 4 is process {victim.pid}; step 0", 0.0)
    assert victim.wait(timeout=60) == -signal.SIGKILL
    story.end()
    assert story.verdict(1).startswith("something is wrong")
    assert story.line("sirtakirun: rank 2 ended: killed by signal 9 (Killed); 3 ranks go on as epoch 2", 0.0)
    assert story.line("[0] rank 0 of 3 is process 1; step 17", time.monotonic())
    assert "was not back before the end" in story.verdict(0)
    assert story.line("sirtakirun: rank 3 (host a, process 5) (output [2]) has joined; 4 ranks go on", 0.0)
    assert not story.line("[2] rank 3 of 4 is process 5; step 30", 0.0)
    assert story.verdict(0).endswith("and it came back")
    assert story.verdict(1).startswith("something is wrong")


def test_a_training_without_a_loss_is_no_success(elastic: ModuleType) -> None:
    story = elastic.Story(kill_after=3600.0)
    assert not story.line("[2] rank 2 of 4 is process 1; step 0", 0.0)
    story.end()
    assert story.verdict(0).startswith("something is wrong")
