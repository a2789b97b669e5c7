"""Result files: schema, partial results, table, plots."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results, tables
from benchmarks.common import plots
from benchmarks.results import FILE_KEYS, ROW_KEYS, Row, Store, file_problems, make_row, row_problems, table
from benchmarks.statistics import estimate


def _row(**changes: Any) -> dict[str, Any]:
    row = make_row(
        "payload_share",
        {"ranks": 4, "rate_mbit": 200.0},
        estimate([0.96, 0.97, 0.98]),
        "share",
        "higher",
        baseline=("gloo", 0.95),
        bound=1.0,
        target=0.95,
    )
    return {**asdict(row), **changes}


def test_a_row_has_exactly_the_keys_of_the_schema() -> None:
    assert tuple(_row()) == ROW_KEYS
    assert row_problems(_row()) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"value": float("nan")}, "value"),
        ({"value": True}, "value"),
        ({"better": "faster"}, "better"),
        ({"n": 0}, "n is"),
        ({"spread": 0.1}, "spread"),
        ({"spread": {"q1": 1, "q3": 2, "low": 1, "high": float("inf")}}, "spread"),
        ({"baseline": 0.9}, "baseline"),
        ({"bound": "1"}, "bound"),
        ({"met": None}, "met"),
        ({"target": None}, "met"),
        ({"comment": ""}, "unknown"),
    ],
)
def test_a_wrong_row_is_noticed(changes: dict[str, Any], word: str) -> None:
    problems = row_problems(_row(**changes))
    assert any(word in problem for problem in problems), problems


def test_a_missing_key_is_noticed() -> None:
    row = _row()
    del row["bound"]
    assert row_problems(row) == ["key 'bound' is missing"]
    assert "key 'rows' is missing" in file_problems({})


def _store(folder: Path, *, resume: bool = False, command: str = "python -m benchmarks.x") -> Store:
    return Store("x", command, folder=folder, resume=resume)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    _store(tmp_path).keep("loopback/2", {"a": [1.0]})
    assert _store(tmp_path).samples("loopback/2") is None
    resumed = _store(tmp_path, resume=True)
    assert resumed.samples("loopback/2") == {"a": [1.0]}
    assert resumed.samples("loopback/4") is None


def test_partial_results_of_another_command_are_not_mixed_in(tmp_path: Path) -> None:
    _store(tmp_path, command="python -m benchmarks.x --quick").keep("loopback/2", {"a": [1.0]})
    with pytest.raises(SystemExit, match="quick"):
        _store(tmp_path, resume=True)


def test_losses_outlive_the_run_and_are_read_where_one_resumes(tmp_path: Path) -> None:
    first = _store(tmp_path)
    first.trainings.keep("b/seed=1", [1.0, 0.123456789])
    first.trainings.keep("a/seed=1", [2.0])
    assert first.trainings.get("b/seed=1") == [1.0, 0.12346]
    first.finish([])
    lines = (tmp_path / "trainings" / "x.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["a/seed=1", "b/seed=1"]

    assert _store(tmp_path).trainings.get("a/seed=1") is None
    again = _store(tmp_path, resume=True)
    assert again.trainings.get("b/seed=1") == [1.0, 0.12346]
    again.trainings.keep("c/seed=1", [3.0])
    assert len((tmp_path / "trainings" / "x.jsonl").read_text().splitlines()) == 3


def test_a_finished_file_follows_the_schema_and_leaves_no_partial_one(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.keep("loopback/2", {"a": [1.0]})
    path = store.finish([Row(**_row())])
    content = json.loads(path.read_text())
    assert tuple(content) == FILE_KEYS
    assert file_problems(content) == []
    assert content["machine"]["cores"] >= 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_row_outside_the_schema_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="better"):
        _store(tmp_path).finish([Row(**_row(better="faster"))])
    assert list(tmp_path.iterdir()) == []


def test_without_git_the_environment_names_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    assert results.commit() == "unknown"
    monkeypatch.setenv("BENCH_COMMIT", "1234567")
    assert results.commit() == "1234567"


def test_the_table_shows_what_was_missed() -> None:
    text = table([Row(**_row()), Row(**_row(met=False))])
    assert text.splitlines()[1].endswith("yes")
    assert text.splitlines()[2].endswith("NO")
    assert "gloo" in text


def _time_row(**params: Any) -> Row:
    return make_row("allreduce_seconds", params, estimate([1.0, 1.1, 1.2]), "s", "lower", bound=0.9)


def test_plots_are_drawn_from_rows_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        _time_row(system=system, net="netns", rate_mbit=200.0, ranks=2, bytes=size)
        for system in ("gloo", "sirtaki")
        for size in (4096, 65536)
    ]
    drawn = plots.allreduce(tmp_path / "a.svg", rows)
    assert drawn is not None
    assert drawn.stat().st_size > 1000
    step = make_row(
        "step_seconds",
        {"system": "ddp", "rate_mbit": None, "ranks": 2, "tensors": 161, "order": "random"},
        estimate([1.0, 1.1]),
        "s",
        "lower",
    )
    assert plots.small_tensors(tmp_path / "b.svg", [step]) is not None


def test_a_table_says_what_all_rows_have_in_common_and_that_sources_had_changed(tmp_path: Path) -> None:
    rows = [Row(**_row(params={"isa": "AVX2", "ranks": ranks})) for ranks in (2, 4)]
    content = json.loads(_store(tmp_path).finish(rows).read_text())
    content["commit"] = "0123456789abcdef+changes"
    text = tables.markdown(content, ["payload_share"])
    assert "commit 0123456789ab+changes, isa AVX2, on" in text
    assert "isa |" not in text


def test_tables_in_pages_come_from_the_result_file(tmp_path: Path) -> None:
    page = "# P\n<!-- results x payload_share -->\nold\n<!-- end results -->\nrest\n"
    assert "(not measured yet)" in tables.fill(page, tmp_path)
    rows = [Row(**_row()), Row(**_row(met=False, params={"ranks": 8, "rate_mbit": 200.0}))]
    _store(tmp_path).finish(rows)
    filled = tables.fill(page, tmp_path)
    assert "| 8 | 0.97 |" in filled
    assert "**no**" in filled
    assert "old" not in filled
    assert filled.startswith("# P\n")
    assert filled.endswith("rest\n")
    assert tables.fill(filled, tmp_path) == filled
