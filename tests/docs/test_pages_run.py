"""The scripts of docs/getting_started.md train as the page starts them, and one for torchrun as README.md starts it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/process"), str(ROOT / "scripts")]

import wheel_hosts
from launch_support import launch
from ssh_hosts import Hosts, unavailable_reason

PAGE = ROOT / "docs/getting_started.md"
LIMIT_SECONDS = 120.0
ENVIRONMENT = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
TWO_MACHINES = re.compile(r"### Two machines\n.*?```python\n(.*?)```\n.*?```\n(.*?)```", re.DOTALL)
SCRIPT = re.compile(
    r"### A whole script\n.*?```python\n(.*?)```\n\n```\nsirtakirun (.*?) python train\.py\n```", re.DOTALL
)


def test_the_whole_script_trains(tmp_path: Path) -> None:
    found = SCRIPT.search(PAGE.read_text())
    assert found is not None
    (tmp_path / "train.py").write_text(found[1])
    done = launch(*shlex.split(found[2]), "python", "train.py", cwd=tmp_path, timeout=LIMIT_SECONDS, env=ENVIRONMENT)
    losses = [float(loss) for loss in re.findall(r"^\[0\] epoch \d: loss ([\d.]+)$", done.out, re.MULTILINE)]
    assert len(losses) == 3, done.out + done.err
    assert losses[2] < losses[0] / 2
    assert (tmp_path / "model.pt").exists()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with Hosts.of_a_test(tmp_path) as made:
        yield made


def test_the_commands_for_two_machines_run(hosts: Hosts, tmp_path: Path) -> None:
    found = TWO_MACHINES.search(PAGE.read_text())
    assert found is not None
    (tmp_path / "train_ddp.py").write_text(found[1])
    names = f"{hosts.near_address},{hosts.far_address}"
    outputs = []
    for command in found[2].splitlines():
        program, *arguments = shlex.split(command.replace("alpha,beta", names))
        assert program == "sirtakirun"
        prefix = hosts.inside(hosts.near)
        command_line = (*hosts.arguments(), *arguments)
        done = launch(*command_line, prefix=prefix, cwd=tmp_path, timeout=LIMIT_SECONDS, env=ENVIRONMENT)
        assert done.code == 0, done.out + done.err
        outputs.append(done.out)
    assert "All is well." in outputs[0]
    for output in outputs[1:]:
        losses = [float(loss) for loss in re.findall(r"^\[0\] epoch \d: last loss ([\d.]+)$", output, re.MULTILINE)]
        assert len(losses) == 3, output
        assert losses[2] < losses[0]


@pytest.mark.parametrize("as_it_is", [True, False], ids=["as it is", "changed"])
def test_the_lines_of_the_readme_run_a_program_for_torchrun(hosts: Hosts, tmp_path: Path, as_it_is: bool) -> None:
    use = wheel_hosts.section(wheel_hosts.README.read_text(), "Use it")
    _, train = wheel_hosts.commands(use, "sirtakirun")
    words = shlex.split(train.replace("alpha", hosts.near_address).replace("beta", hosts.far_address))
    text = wheel_hosts.PROGRAM if as_it_is else wheel_hosts.changed(wheel_hosts.PROGRAM, use)
    (tmp_path / words[-1]).write_text(text)
    arguments = (*hosts.arguments(), *words[1:])
    prefix = hosts.inside(hosts.near)
    done = launch(*arguments, prefix=prefix, cwd=tmp_path, timeout=LIMIT_SECONDS, env=ENVIRONMENT)
    assert done.code == 0, done.out + done.err
    assert len(wheel_hosts.losses_of(done.out)) == 3 * wheel_hosts.RANKS, done.out
    report = re.findall(r"^(sirtaki: report .*|  [a-z ]+)(?=$|  +\d)", use, re.MULTILINE)
    assert len(report) == 5
    for row in report:
        assert (row in done.err.replace("[0!] ", "")) != as_it_is, (row, done.err)
    assert ("has no effect" in done.err) == as_it_is, done.err
    assert "refused" not in done.err
