"""The run file: everything about a training, whichever way it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rank_support import environment, launch

pytest.importorskip("torch")

import sirtaki
import sirtaki.torch as hvd
from sirtaki._telemetry import run_file
from sirtaki.errors import InvalidArgumentError
from sirtaki.launch import launcher_path

TRAINED = """
import os, signal, sys, torch, sirtaki
import sirtaki.torch as hvd

def main(how):
    hvd.init()
    model = torch.nn.Linear(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression="int8:min=1")
    progress = sirtaki.Progress(steps_per_epoch=3, samples_per_step=2, optimizer=optimizer)
    step = 0
    while step < 3 or how == "forever":
        optimizer.zero_grad()
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        progress.step(0, 1.0)
        step += 1
        if step == 3 and hvd.rank() == 0:
            print("THREE STEPS", flush=True)
    if how == "progress":
        progress.end()
    if how == "shutdown":
        hvd.shutdown()
    if how == "lost" and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "lost":
        hvd.barrier()
    if how == "error":
        raise ValueError("on purpose")

main(sys.argv[1])
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAINED)
    return str(path)


@pytest.fixture
def default_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def check(path: Path, steps: int, slack: int = 0) -> dict[str, Any]:
    """Checks a run file of `steps` steps or more; counts differ by `slack` if a signal came in the middle of a step."""
    made = run_file.read(path)
    (optimizer,) = made["optimizers"]
    assert optimizer["steps"] >= steps
    counts = [sum(point["steps"] for point in optimizer["samples"]), made["metrics"]["steps"]]
    counts += [made["readings"][-1]["steps"], made["stats"]["streams.steps"]]
    assert all(abs(count - optimizer["steps"]) <= slack for count in counts), (counts, optimizer["steps"])
    assert {row["name"]: row["codec"] for row in optimizer["layers"]} == {"weight": "int8", "bias": "none"}
    assert "exposed communication" in made["report"]
    assert made["readings"][-1]["codecs"].keys() == {"int8", "none"}
    assert Path(made["options"]["report.file"]).name == path.name
    assert not [name for name in made["options"] if name.startswith("job.")]
    assert [member["rank"] for member in made["members"]] == [0, 1]
    assert list(path.parent.glob(".*")) == [], "nothing else stays"
    return made


@pytest.mark.parametrize(
    ("how", "ended_by"), [("return", ""), ("shutdown", ""), ("progress", ""), ("error", "ValueError: on purpose")]
)
def test_a_training_ends_with_a_run_file(how: str, ended_by: str, program: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "run.json"
    done = launch(2, program, how, options=("--report-file", str(path), "--report-end", "false"), warm=how != "error")
    assert (done.returncode == 0) == (how != "error"), done.stdout
    assert check(path, 3)["ended_by"] == ended_by


def test_an_interrupt_loses_nothing(program: str, tmp_path: Path) -> None:
    command = [launcher_path(), "-np", "2", "--report-file", "run.json", sys.executable, program, "forever"]
    job = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert job.stdout is not None
    said = []
    for line in job.stdout:
        said.append(line)
        if "THREE STEPS" in line:
            job.send_signal(signal.SIGINT)
            break
    rest, _ = job.communicate(timeout=60)
    assert (tmp_path / "run.json").exists(), "".join(said) + rest
    assert run_file.read(tmp_path / "run.json")["ended_by"] == "SIGTERM", "".join(said) + rest
    check(tmp_path / "run.json", 3, slack=1)
    assert "exposed communication" in rest, "the report is there, too"


def test_a_lost_rank_leaves_a_run_file(program: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = launch(2, program, "lost", options=("--report-file", str(path)))
    assert done.returncode == 128 + signal.SIGKILL, done.stdout
    # Rank 0 sees the loss itself, or the launcher ends it first.
    ended_by = check(path, 3)["ended_by"]
    assert ended_by == "SIGTERM" or ended_by.startswith("PeerLostError: "), ended_by


@pytest.mark.usefixtures("default_sigterm")
def test_a_program_keeps_its_handler_of_sigterm(tmp_path: Path) -> None:
    def mine(*_: object) -> None:
        pass

    for handler in (signal.SIG_DFL, mine):
        signal.signal(signal.SIGTERM, handler)
        hvd.init(options={"report.file": str(tmp_path / "run.json")})
        assert (signal.getsignal(signal.SIGTERM) is mine) == (handler is mine)
        hvd.shutdown()
        assert signal.getsignal(signal.SIGTERM) is handler


def test_each_session_of_a_process_has_its_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        hvd.init(options={"report.file": str(tmp_path / "run.json")})
        hvd.shutdown()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-2.json", "run.json"]
    assert run_file.read(tmp_path / "run-2.json")["optimizers"] == []
    sirtaki.init()
    hvd.shutdown()
    assert len(list(tmp_path.iterdir())) == 2
    assert capfd.readouterr().err == ""


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    hvd.init(options={"report.file": str(tmp_path / "file/run.json")})
    assert "warning: there will be no run file (report.file): " in capfd.readouterr().err
    hvd.shutdown()
    assert "there is no run file: " in capfd.readouterr().err


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    run_file.write(path, {"a": 1})
    assert path.stat().st_mode & 0o777 == 0o666 & ~run_file._umask()
    with pytest.raises(ValueError, match="JSON"):
        run_file.write(path, {"a": float("nan")})
    monkeypatch.setattr(os, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_file.write(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    assert run_file._finite({"a": [float("inf"), 1.5, {2: float("nan")}]}) == {"a": [None, 1.5, {"2": None}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not a run file: "),
        ("[]", "the option report.file makes one"),
        ('{"format": "sirtaki-run", "version": 99, "sirtaki": "9.9"}', "reads version 1; use the Sirtaki 9.9"),
    ],
)
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidArgumentError, match=said):
        run_file.read(tmp_path / "x.json")
