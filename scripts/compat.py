"""`make compat`: runs the same programs under every launcher, and trainers of other libraries over Sirtaki.

Writes benchmarks/results/compat.json. A row is `{launcher, version, ranks, door, check, outcome, seconds}`; the checks
are the tests of tests/python/test_compat.py, test_compat_trainers.py and tests/docs/test_hub_recipes.py. A door is the
class, call or example by which the program uses Sirtaki. In rows of test_compat_trainers.py, `launcher` ends with the
name of the library, and `version` is the version of the library.
The exit status is that of the tests. The file stays unchanged if no test has run.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.results import RESULTS, commit, machine  # noqa: E402

TESTS = ("tests/python/test_compat.py", "tests/python/test_compat_trainers.py", "tests/docs/test_hub_recipes.py")
RESULT = RESULTS / "compat.json"


def outcome_of(case: ElementTree.Element) -> str:
    """Returns the outcome of a test in a JUnit file."""
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return {"failure": "failed", "error": "failed", "skipped": "skipped"}[kind]
    return "passed"


def rows_of(report: str) -> list[dict[str, Any]]:
    """Returns a row for each test in the JUnit file of pytest that has started its launcher."""
    rows = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        facts = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        if "launcher" not in facts:
            continue
        rows.append(
            {
                "launcher": facts["launcher"],
                "version": facts.get("version", ""),
                "ranks": int(facts.get("ranks", "0")),
                "door": facts.get("door", ""),
                "check": case.get("name", "").partition("[")[0].removeprefix("test_").replace("_", " "),
                "outcome": outcome_of(case),
                "seconds": round(float(case.get("time", "0")), 1),
            }
        )
    return sorted(rows, key=lambda row: (row["launcher"], row["door"], row["check"]))


def write_result(result: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Replaces the file atomically; without rows, returns false and leaves it unchanged."""
    if not rows:
        return False
    partial = result.with_suffix(".partial")
    partial.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    os.replace(partial, result)
    return True


def main() -> int:
    """Runs the tests, writes the file, prints the table."""
    head = {
        "name": "compat",
        "command": "make compat",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        tests = [sys.executable, "-m", "pytest", "-q", *TESTS, f"--junitxml={report}", "-o", "junit_family=legacy"]
        code = subprocess.run(tests, cwd=ROOT, check=False).returncode
        rows = rows_of(report.read_text()) if report.exists() else []
    if not write_result(RESULT, head, rows):
        print(f"no test ran; {RESULT.relative_to(ROOT)} is left as it is", file=sys.stderr)
        return code or 1
    columns = {"launcher": 31, "version": 8, "ranks": 5, "outcome": 7, "seconds": 7, "door": 28, "check": 0}
    for row in ({name: name for name in columns}, *rows):
        print("  ".join(f"{row[name]!s:<{width}}" for name, width in columns.items()).rstrip())
    print(f"\nwritten: {RESULT.relative_to(ROOT)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
