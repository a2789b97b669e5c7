"""Figures of the benchmark of predicted steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.contest import TaskCase
from benchmarks.estimate import ALONE, AUTO, DENSE, LOCAL, METHODS, predict, rows_of, share_row

pytestmark = pytest.mark.usefixtures("warm_ranks")

ROOT = Path(__file__).resolve().parents[2]
CASE = TaskCase("20", 4, "cnn_sgd")


def test_an_error_counts_in_both_directions() -> None:
    measured = {ALONE: [0.01] * 3, DENSE: [0.5] * 3, AUTO: [0.02] * 3, LOCAL: [0.01] * 3}
    seconds = {DENSE: 0.55, AUTO: 0.016, LOCAL: 0.011}
    predicted = {name: {"seconds": value, "sent": 100.0, "how": ""} for name, value in seconds.items()}
    rows = rows_of(CASE, {"measured": measured, "sent": dict.fromkeys(METHODS, 120.0), "predicted": predicted})
    errors = {row.params["method"]: row for row in rows if row.metric == "error"}
    assert [errors[name].value for name in METHODS] == pytest.approx([0.1, 0.2, 0.1])
    assert [errors[name].met for name in METHODS] == [True, False, True]
    ratios = {row.params["method"]: row.value for row in rows if row.metric == "predicted_over_measured"}
    assert ratios[AUTO] == pytest.approx(0.8)
    assert share_row(rows).value == pytest.approx(2 / 3)


def test_a_prediction_has_all_methods() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sirtaki")
    # The gradients of the eight tensors appear at equal distances.
    found = predict(CASE, 0.01, [0.001 * i for i in range(8)])
    # 206,922 elements, of which a rank sends 1.5 times the bytes.
    assert found[DENSE]["seconds"] == pytest.approx(206_922 * 4 * 1.5 / (20e6 / 8 * 1448 / 1514) + 0.01, rel=0.05)
    assert found[LOCAL]["seconds"] < found[AUTO]["seconds"] < found[DENSE]["seconds"]


def test_a_quick_run_writes_rows_where_links_can_be_shaped(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sirtaki")
    command = [sys.executable, "-m", "benchmarks.estimate", "--quick", "--nets", "1000", "--ranks", "2"]
    command += ["--tasks", "cnn_sgd", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "within_15_percent" in done.stdout or "shaped links are left out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["estimate.json"]
