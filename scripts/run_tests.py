"""Runs the stages of `make test`, or with --check those of `make check`, and prints the minutes of each.

The output ends with the slowest tests of each stage, a table of the stages and a line `N passed, N failed`.

A stage passes if its command exits with 0; the number of its tests comes from the closing line of ctest or pytest. A
stage whose prerequisite failed is not run and counts as a failure.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: For stages that hang: a test has limits of its own, and on slow processors pytest alone takes over 30 minutes.
STAGE_LIMIT_SECONDS = 60 * 60
CTEST_LINE = re.compile(r"(\d+)% tests passed, (\d+) tests? failed out of (\d+)")
PYTEST_LINE = re.compile(r"^=* ?((?:\d+ \w+(?:, )?)+) in [\d.]+s", re.MULTILINE)
# "12/62 Test #35: sim_test ....   Passed  101.10 sec" and "9.41s call     tests/python/test_x.py::test_y".
CTEST_TIME = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*.* (\d+\.\d+) sec", re.MULTILINE)
PYTEST_TIME = re.compile(r"^(\d+\.\d+)s (?:call|setup|teardown) +(\S.*)$", re.MULTILINE)
SLOWEST = 5
PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


@dataclass(frozen=True)
class Stage:
    """One row of the table: a name, the commands run in order, the stages that must have passed."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...] = ()
    runs_tests: bool = False


@dataclass
class Outcome:
    """Result of a stage."""

    stage: str
    verdict: str  # "passed", "failed" or "not run"
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    slowest: list[tuple[float, str]] = field(default_factory=list)  # seconds and name, the slowest first


@dataclass
class Totals:
    """Sums over stages."""

    outcomes: list[Outcome] = field(default_factory=list)

    def ok(self, name: str) -> bool:
        """Returns true if the stage `name` passed, or is not part of this run."""
        return all(o.verdict == "passed" for o in self.outcomes if o.stage == name)


def count_tests(output: str) -> tuple[int, int, int]:
    """Returns passed, failed and skipped, summed over the closing lines of ctest and pytest in `output`."""
    passed = failed = skipped = 0
    for match in CTEST_LINE.finditer(output):
        failed += int(match[2])
        passed += int(match[3]) - int(match[2])
    for match in PYTEST_LINE.finditer(output):
        for number, kind in PYTEST_COUNT.findall(match[1]):
            if kind == "passed":
                passed += int(number)
            elif kind == "skipped":
                skipped += int(number)
            else:
                failed += int(number)
    return passed, failed, skipped


def slowest_tests(output: str) -> list[tuple[float, str]]:
    """Returns seconds and names of the slowest tests that ctest and `pytest --durations` list in `output`."""
    times = [(float(seconds), name) for name, seconds in CTEST_TIME.findall(output)]
    times += [(float(seconds), name) for seconds, name in PYTEST_TIME.findall(output)]
    return sorted(times, reverse=True)[:SLOWEST]


def stream(command: tuple[str, ...], sink: list[str], env: dict[str, str]) -> int:
    """Runs `command`, shows its output as it arrives and keeps it in `sink`; returns the exit status."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    guard = threading.Timer(STAGE_LIMIT_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
    guard.start()
    try:
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            sink.append(line)
        return process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    finally:
        guard.cancel()


def run_stage(stage: Stage, env: dict[str, str]) -> Outcome:
    """Runs the commands of one stage until one fails."""
    print(f"\n== {stage.name} ==", flush=True)
    begin = time.monotonic()
    sink: list[str] = []
    status = 0
    for command in stage.commands:
        status = stream(command, sink, env)
        if status != 0:
            late = f", killed after its limit of {STAGE_LIMIT_SECONDS / 60:g} min" if status == -signal.SIGKILL else ""
            print(f"== {stage.name}: '{' '.join(command)}' exited with {status}{late}", flush=True)
            break
    outcome = Outcome(stage.name, "passed" if status == 0 else "failed", time.monotonic() - begin)
    if stage.runs_tests:
        outcome.passed, outcome.failed, outcome.skipped = count_tests("".join(sink))
        outcome.slowest = slowest_tests("".join(sink))
        if status == 0 and outcome.passed == 0:
            print(f"== {stage.name}: no test ran", flush=True)
            outcome.verdict = "failed"
    if outcome.verdict == "failed" and outcome.failed == 0:
        outcome.failed = 1
    if not stage.runs_tests and outcome.verdict == "passed":
        outcome.passed = 1
    print(f"== {stage.name}: {outcome.verdict}, {outcome.seconds / 60:.1f} min", flush=True)
    return outcome


def without_aslr() -> tuple[str, ...]:
    """Returns a prefix that disables ASLR, which may occupy the fixed shadow addresses of ThreadSanitizer, if the
    kernel allows it.
    """
    prefix = ("setarch", platform.machine(), "-R")
    try:
        allowed = subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    return prefix if allowed else ()


def at_a_time(jobs: str) -> str:
    """Returns the number of tests to run at a time: one more than there are cores, which keeps the cores busy while the
    ranks of a test wait for each other or for a deadline.
    """
    return str(int(jobs) + 1)


def sanitizer_stage(name: str, jobs: str) -> Stage:
    """Returns the stage that builds and runs the C++ tests of the preset `name`."""
    return Stage(
        name,
        (
            ("cmake", "--preset", name, "--log-level=WARNING"),
            ("cmake", "--build", "--preset", name, "-j", jobs),
            (
                *(without_aslr() if name == "tsan" else ()),
                *("ctest", "--test-dir", f"build/{name}", "--output-on-failure", "-j", at_a_time(jobs)),
                *("--no-tests=error", "-LE", "release_only"),
            ),
        ),
        runs_tests=True,
    )


def check_stages(jobs: str) -> list[Stage]:
    """Returns the stages of `make check` in order: a check of minutes before a commit."""
    python = str(ROOT / ".venv/bin/python")
    known = {stage.name: stage for stage in stages(jobs)}
    ctest = ("ctest", "--test-dir", "build/release", "--output-on-failure", "-j", at_a_time(jobs), "--no-tests=error")
    smoke = "tests/python/test_horovod.py::test_the_example_trains_as_it_is"
    return [
        Stage("lint", ((python, "scripts/lint.py", "--changed", "--jobs", jobs),)),
        known["package"],
        known["c++ build"],
        Stage("unit, sim", ((*ctest, "-L", "^(unit|sim)$"),), needs=("c++ build",), runs_tests=True),
        Stage("training", ((python, "-m", "pytest", "-q", smoke),), needs=("package",), runs_tests=True),
    ]


def stages(jobs: str) -> list[Stage]:
    """Returns all stages of `make test` in order."""
    python = str(ROOT / ".venv/bin/python")
    return [
        Stage("lint", ((python, "scripts/lint.py", "--jobs", jobs),)),
        Stage("package", (("make", "--no-print-directory", "build", f"JOBS={jobs}"),)),
        Stage(
            "c++ build",
            (
                # Where nvcc is, all architectures of the plug-in would take longer than the rest of this stage.
                ("cmake", "--preset", "release", "-DSIRTAKI_CUDA_ARCHITECTURES=80;90", "--log-level=WARNING"),
                ("cmake", "--build", "--preset", "release", "-j", jobs),
            ),
        ),
        Stage(
            "c++ tests",
            (
                (
                    *("ctest", "--test-dir", "build/release", "--output-on-failure", "-j", at_a_time(jobs)),
                    "--no-tests=error",
                ),
            ),
            needs=("c++ build",),
            runs_tests=True,
        ),
        sanitizer_stage("asan", jobs),
        sanitizer_stage("tsan", jobs),
        Stage(
            "pytest",
            (
                (
                    *(python, "-m", "pytest", "-q", "tests", "-m", "not compat", f"--durations={SLOWEST}"),
                    # A file stays on one worker, as do the jobs that its cases share.
                    *("-n", at_a_time(jobs), "--dist", "loadfile", "--no-loadscope-reorder"),
                ),
            ),
            needs=("package",),
            runs_tests=True,
        ),
    ]


def test_environment() -> dict[str, str]:
    """Returns the caller's environment, with sanitizers set to stop at the first report."""
    env = dict(os.environ)
    env.setdefault("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1:check_initialization_order=1")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    suppressions = ROOT / "tests/tsan_suppressions.txt"
    tsan = "halt_on_error=1:second_deadlock_stack=1"
    env.setdefault("TSAN_OPTIONS", f"{tsan}:suppressions={suppressions}" if suppressions.exists() else tsan)
    env["PATH"] = f"{ROOT / '.venv/bin'}{os.pathsep}{env.get('PATH', '')}"
    return env


def report(outcomes: list[Outcome]) -> int:
    """Prints the slowest tests, the table and the closing line; returns the exit status."""
    for o in outcomes:
        for seconds, name in o.slowest:
            print(f"{o.stage:<12} {seconds:>7.1f} s  {name}")
    print(f"\n{'stage':<12} {'result':<8} {'minutes':>7} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for o in outcomes:
        print(f"{o.stage:<12} {o.verdict:<8} {o.seconds / 60:>7.1f} {o.passed:>7} {o.failed:>7} {o.skipped:>8}")
    print(f"{'total':<12} {'':<8} {sum(o.seconds for o in outcomes) / 60:>7.1f}\n")
    failed = sum(o.failed for o in outcomes)
    print(f"{sum(o.passed for o in outcomes)} passed, {failed} failed", flush=True)
    return 1 if failed else 0


def run_all(chosen: list[Stage], run: Callable[[Stage], Outcome]) -> list[Outcome]:
    """Runs each stage unless one of its prerequisites has failed."""
    totals = Totals()
    for stage in chosen:
        missing = [need for need in stage.needs if not totals.ok(need)]
        if missing:
            print(f"\n== {stage.name}: not run, {', '.join(missing)} failed", flush=True)
            totals.outcomes.append(Outcome(stage.name, "not run", failed=1))
        else:
            totals.outcomes.append(run(stage))
    return totals.outcomes


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default=str(os.cpu_count() or 1))
    parser.add_argument("--check", action="store_true", help="the stages of `make check`")
    parser.add_argument("--only", action="append", help="run this stage alone; may be repeated")
    args = parser.parse_args()
    known = check_stages(args.jobs) if args.check else stages(args.jobs)
    names = [stage.name for stage in known]
    unknown = [name for name in args.only or [] if name not in names]
    if unknown:
        parser.error(f"unknown stage {unknown[0]!r}; there are: {', '.join(names)}")
    chosen = [stage for stage in known if not args.only or stage.name in args.only]
    env = test_environment()
    return report(run_all(chosen, lambda stage: run_stage(stage, env)))


if __name__ == "__main__":
    sys.exit(main())
