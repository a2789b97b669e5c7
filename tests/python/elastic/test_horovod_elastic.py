"""Elastic programs for Horovod, started from Python with horovod.runner, whose hosts come, go and fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sirtaki

FOLDER = Path(__file__).parent
PACKAGE = Path(sirtaki.__file__).with_name("_horovod")
LIMIT_SECONDS = 120
DRIVER = """
from unittest import mock
from horovod.runner.common.util import config_parser
from horovod.runner.elastic import constants, driver
from horovod.runner.launch import _run_elastic, parse_args
from horovod.runner.util.threads import in_thread

arguments = parse_args()
assert config_parser.set_env_from_args({}, arguments) == {}

def job():
    try:
        _run_elastic(arguments)
    except RuntimeError as error:
        print("RAISED", str(error).replace("\\n", " | "))

with (
    mock.patch("horovod.runner.elastic.driver.DISCOVER_HOSTS_FREQUENCY_SECS", 0.05),
    mock.patch("horovod.runner.elastic.driver.ELASTIC_TIMEOUT_SECS", 77),
    mock.patch("horovod.runner.gloo_run._get_min_start_hosts", return_value=1),
):
    in_thread(job).join()
"""
SCRIPT = """#!/bin/sh
sed -n "$(($(cat {folder}/log 2>/dev/null | wc -l) + 1))p" {folder}/rounds | tr , '\\n'
"""


def drive(program: str, *words: str, limit: float = LIMIT_SECONDS) -> tuple[int, str]:
    """Returns the exit status and the output of a program that starts a job, which is killed at the limit."""
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            output, _ = driver.communicate(timeout=limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    return driver.returncode, output


def run(tmp_path: Path, kind: str, rounds: list[str], *options: str) -> tuple[list[dict[str, Any]], str]:
    """Returns the lines of the log and the output of a job; rounds[i] are the hosts of round i."""
    (tmp_path / "rounds").write_text("\n".join(rounds) + "\n")
    script = tmp_path / "hosts.sh"
    script.write_text(SCRIPT.format(folder=tmp_path))
    script.chmod(0o755)
    words = [*options, "--host-discovery-script", str(script), "--log-level", "WARNING"]
    program = str(FOLDER / ("keras_program.py" if kind == "keras" else "horovod_program.py"))
    code, output = drive(DRIVER, *words, sys.executable, program, kind, str(tmp_path))
    assert code == 0, output
    log = tmp_path / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else [], output


@pytest.mark.parametrize("kind", ["torch", "tensorflow", "keras"])
def test_hosts_come_and_go_as_the_program_expects(tmp_path: Path, kind: str) -> None:
    pytest.importorskip(kind)
    rounds = ["localhost:1", "localhost:1,127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"]
    log, output = run(tmp_path, kind, rounds, "-np", "1", "--min-num-proc", "1", "--max-num-proc", "2")
    assert [entry["size"] for entry in log] == [1, 2, 1, 1], output
    assert [entry["host"] for entry in log] == ["localhost", "localhost", "127.0.0.1", "127.0.0.1"]
    assert [entry["start"] for entry in log] == [0, 0, 1, 1]
    assert [entry["entered"] for entry in log] == [1, 2, 3, 3]
    assert log[0]["pid"] == log[1]["pid"] != log[2]["pid"] == log[3]["pid"]


def test_a_change_waits_for_all_of_its_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rounds = ["localhost:2", "localhost:2,127.0.0.1:2", "127.0.0.1:2"]
    log, output = run(tmp_path, "torch", rounds, "-np", "2", "--min-num-proc", "2", "--max-num-proc", "4")
    assert [(entry["size"], entry["start"], entry["entered"]) for entry in log] == [(2, 0, 1), (4, 0, 2), (2, 2, 3)], (
        output
    )


def test_a_job_that_fails_is_an_error_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "fail.0").write_text("0 1")
    _, output = run(tmp_path, "torch", ["localhost:2"], "-np", "2", "--min-np", "2", "--max-np", "2")
    raised = next(line for line in output.splitlines() if line.startswith("RAISED"))
    assert "RAISED Horovod detected that one or more processes exited with non-zero status" in raised
    assert "sirtakirun: " in raised, output


ABSENT = """
import importlib
import horovod.runner.launch

for name in "mpi_run", "driver.driver_service", "elastic.rendezvous":
    try:
        importlib.import_module("horovod.runner." + name)
    except ImportError as error:
        print(error)
for module, name in ("", "run"), (".runner", "run"), (".runner.launch", "run_commandline"):
    try:
        exec(f"from horovod{module} import {name}")
    except ImportError as error:
        print(error)
try:
    horovod.runner.launch.check_build
except AttributeError as error:
    assert "docs/horovod.md" in str(error), error
"""


def test_what_the_runner_lacks_names_what_to_use() -> None:
    code, output = drive(ABSENT, limit=60)
    assert code == 0, output
    assert output.count("sirtaki.run()") == 6, output


CLOSED = """
import sys
from unittest import mock
from horovod.runner.launch import _run_elastic, parse_args

with mock.patch.object(sys.stderr, "write", side_effect=ERROR):
    try:
        _run_elastic(parse_args())
    except BaseException as error:
        print("RAISED", type(error).__name__, error)
"""


@pytest.mark.parametrize("error", ["OSError", "ValueError"])
def test_a_job_ends_as_it_does_where_standard_error_is_closed(error: str) -> None:
    _, output = drive(CLOSED.replace("ERROR", error), "-np", "1", "sh", "-c", "echo a line >&2; exit 3", limit=30)
    assert "RAISED RuntimeError Horovod detected that one or more processes exited with non-zero status" in output
    assert "sirtakirun: " in output


def test_ctrl_c_ends_the_job() -> None:
    forever = ("sh", "-c", "echo a line >&2; exec tail -f /dev/null")
    code, output = drive(CLOSED.replace("ERROR", "KeyboardInterrupt"), "-np", "1", *forever, limit=30)
    assert (code, output) == (0, "RAISED KeyboardInterrupt \n")


#: The last of several ranks fails in each epoch.
FAILING = """
import sys
import sirtaki
from sirtaki import basics, elastic
from sirtaki.objects import allgather_object

sirtaki.init()

@elastic.run
def train(state):
    print("TIMEOUT", basics.option("elastic.timeout"), flush=True)
    if 0 < sirtaki.rank() == sirtaki.size() - 1:
        sys.exit(3)
    while True:
        allgather_object(sirtaki.rank())

train(elastic.ObjectState())
"""


def test_a_job_that_comes_to_its_limit_of_resets_names_it() -> None:
    options = ("-np", "3", "--min-num-proc", "1", "--reset-limit", "1")
    _, output = drive(DRIVER, *options, sys.executable, "-c", FAILING)
    message = "Horovod was shutdown because number of resets during elastic job exceeded limit: 1 | "
    assert f"RAISED {message}" in output, output
    assert "(elastic.reset_limit)" in output
    assert "TIMEOUT 77s" in output


def test_the_limit_of_resets_is_read_from_the_line_about_it() -> None:
    lines = ["sirtakirun: changed more than 3 times (elastic.reset_limit), for the last time because\n"]
    program = f"from horovod.runner.launch import _what\nprint(_what(1, {lines}))\nprint(_what(1, ['more than once']))"
    _, output = drive(program, limit=30)
    assert output.splitlines() == [
        "Horovod was shutdown because number of resets during elastic job exceeded limit: 3",
        "Horovod detected that one or more processes exited with non-zero status (sirtakirun: exit code 1)",
    ]
