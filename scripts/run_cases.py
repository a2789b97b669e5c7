"""`make cases`: runs programs that each test one kind of fault, and prints a table.

usage: scripts/run_cases.py [FOLDER|FILE ...]          default: tests/cases

A program is run by this interpreter without arguments. Its exit status is the result: 0 right, 1 wrong, 77 not testable
on this machine. Any other status counts as wrong, and so does a program that runs longer than `--limit`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CANNOT_TELL = 77
LIMIT_SECONDS = 480.0


@dataclass(frozen=True)
class Verdict:
    """Outcome of one program."""

    name: str
    word: str  # "right", "wrong" or "cannot tell"
    seconds: float
    output: str


def programs(places: list[Path]) -> list[Path]:
    """Returns the programs in `places`: the files themselves, and of folders every `*.py` whose name has no leading
    `_`.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += sorted(path for path in place.glob("*.py") if not path.name.startswith("_"))
        else:
            found.append(place)
    return found


def environment() -> dict[str, str]:
    """Returns the caller's variables with the programs of this interpreter first on the PATH.

    PYTHONUNBUFFERED is dropped: with it Python writes a line in parts, and the lines of ranks that share a pipe mix.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**{key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}, "PATH": path}


def run_case(program: Path, limit: float = LIMIT_SECONDS) -> Verdict:
    """Runs one program in a process group of its own, and ends the group afterwards."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, str(program)],
        cwd=program.parent,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=limit)[0]
        word = {0: "right", CANNOT_TELL: "cannot tell"}.get(process.returncode, "wrong")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, word = f"{process.communicate()[0]}\nnot over after {limit:.0f} s", "wrong"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return Verdict(program.name, word, time.monotonic() - begin, output)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, default=[ROOT / "tests/cases"])
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds a program may take")
    args = parser.parse_args()
    missing = [str(place) for place in args.places if not place.exists()]
    if missing:
        parser.error(f"no such file or folder: {', '.join(missing)}")
    verdicts = []
    for program in programs([place.resolve() for place in args.places]):
        verdict = run_case(program, args.limit)
        verdicts.append(verdict)
        if verdict.word == "wrong":
            print("\n".join(verdict.output.splitlines()[-40:]))
        print(f"{verdict.word:<12} {verdict.seconds:>6.1f} s  {verdict.name}", flush=True)
    wrong = sum(verdict.word == "wrong" for verdict in verdicts)
    untold = sum(verdict.word == "cannot tell" for verdict in verdicts)
    print(f"{len(verdicts) - wrong - untold} passed, {wrong} failed, {untold} skipped")
    return 1 if wrong or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
