"""Summary lines of the demo about its trainings, tested without training."""

from __future__ import annotations

import importlib.util
import sys
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
