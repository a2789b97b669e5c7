"""`make compat` replaces its result file only by a complete one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import compat

RAN = """<testsuites><testsuite><testcase name="test_a_job[srun]" time="1.25"><properties>
<property name="launcher" value="srun"/><property name="version" value="22"/><property name="ranks" value="2"/>
<property name="door" value="DDP"/></properties>{outcome}</testcase></testsuite></testsuites>"""
NEVER_RAN = (
    '<testsuites><testsuite><testcase name="tests.python.test_compat"><error/></testcase></testsuite></testsuites>'
)


@pytest.mark.parametrize(("outcome", "said"), [("", "passed"), ("<failure/>", "failed"), ("<skipped/>", "skipped")])
def test_rows(outcome: str, said: str) -> None:
    row = {"launcher": "srun", "version": "22", "ranks": 2, "door": "DDP", "check": "a job", "outcome": said}
    assert compat.rows_of(RAN.format(outcome=outcome)) == [{**row, "seconds": 1.2}]


def test_tests_that_never_ran_leave_the_file(tmp_path: Path) -> None:
    result = tmp_path / "compat.json"
    result.write_text("as it was")
    assert not compat.write_result(result, {"name": "compat"}, compat.rows_of(NEVER_RAN))
    assert result.read_text() == "as it was"


def test_file_is_replaced_whole(tmp_path: Path) -> None:
    result = tmp_path / "compat.json"
    rows = compat.rows_of(RAN.format(outcome=""))
    assert compat.write_result(result, {"name": "compat"}, rows)
    assert json.loads(result.read_text()) == {"name": "compat", "rows": rows}
    assert list(tmp_path.iterdir()) == [result]


def test_a_write_that_fails_leaves_the_file(tmp_path: Path) -> None:
    result = tmp_path / "compat.json"
    result.write_text("as it was")
    with pytest.raises(TypeError):
        compat.write_result(result, {"name": object()}, compat.rows_of(RAN.format(outcome="")))
    assert result.read_text() == "as it was"
