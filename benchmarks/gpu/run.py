"""Runs all checks and measurements that need a GPU, part after part, and prints one table last.

Started by benchmarks/gpu/run.sh. The parts are:

    kernels     the CUDA kernels against the reference on the CPU, all bytes
    nccl        collectives over NCCL, two ranks that share the GPU, as a smoke test
    tensors     results of two ranks for torch tensors on the GPU, through host memory and over NCCL, against the CPU
    sanitizer   the CUDA kernels on small arrays under compute-sanitizer: memcheck, racecheck, initcheck
    timing      the kernels against a copy of as many bytes, CUB and torch; writes gpu_kernels.json
    training    Fashion-MNIST on two ranks that share the GPU, against the CPU and torch DDP; writes gpu_training.json

Requires nvcc, CMake, a C++ compiler, and torch for half of the parts; the build takes all other requirements from the
packages of scripts/setup.sh, or from the folder that --bundle makes of them. A part that fails does not end the run.
All output goes to gpu_run.log in the folder of --results as well, as it comes. No process and no temporary file is left
behind, even if the run is killed.
Exit status: 0 if no part has failed, 1 if one has, 2 if the machine has no GPU, or its driver hangs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.gpu import bundle
from benchmarks.gpu.build import PACKAGE, Build, BuildError
from benchmarks.gpu.keeper import Commands, ask, exit_on_signals, keeping
from benchmarks.gpu.parts import PARTS, Part, Plan
from benchmarks.results import RESULTS, ROOT, Row, commit, table

DEFAULT_PACKAGES = ROOT / ".cache/gpu-packages"
DEFAULT_BUILD = ROOT / "build/gpu"
LOG = "gpu_run.log"


def say(text: str, commands: Commands | None = None) -> None:
    """Prints a line about the run itself, and adds it to the log of `commands`."""
    print(f"run: {text}", file=sys.stderr, flush=True)
    if commands is not None:
        commands.note(f"run: {text}")


def gpus() -> list[str]:
    """Returns the list of devices from the driver; raises subprocess.TimeoutExpired if it hangs."""
    try:
        listed = ask(["nvidia-smi", "--list-gpus"]).stdout
    except OSError:
        return []
    return [line for line in listed.splitlines() if line.startswith("GPU")]


def configured(parts: Sequence[Part], build: Build, commands: Commands) -> list[Part]:
    """Configures the build; returns the parts that can be built, those with the Python package only if it can be."""
    rest = [part for part in parts if PACKAGE not in part.targets]
    if len(rest) < len(parts):
        try:
            build.configure(package=True)
        except BuildError as error:
            say(f"with the Python package it cannot be configured: {error}", commands)
        else:
            return list(parts)
    if rest:
        build.configure(package=False)
    return rest


def targets_of(parts: Iterable[Part]) -> list[str]:
    """All targets of the parts, each once."""
    return list(dict.fromkeys(target for part in parts for target in part.targets))


def built(parts: Sequence[Part], build: Build, commands: Commands) -> dict[str, str]:
    """Builds for all parts in one go or, if that fails, for one part after the other; returns failures by part."""
    say(f"building {', '.join(targets_of(parts))}", commands)
    try:
        build.build(targets_of(parts))
    except BuildError:
        failed = {}
        for part in parts:
            try:
                build.build(part.targets)
            except BuildError as error:
                failed[part.name] = "FAILED: it does not build"
                say(f"{part.name} does not build: {error}", commands)
        return failed
    return {}


def run_part(part: Part, plan: Plan, environment: Mapping[str, str], commands: Commands) -> str:
    """Runs all commands of a part, even after one has failed; returns the verdict."""
    begin = time.monotonic()
    if commands.seconds_left() <= 0:
        return "left out: no time is left"
    say(f"{part.name} ...", commands)
    asked = part.commands(plan)
    wrong = "; ".join(found for command in asked if (found := commands.call(command, environment, part.limit)))
    return f"FAILED: {wrong}" if wrong else f"ok ({time.monotonic() - begin:.0f} s)"


def run_all(parts: Sequence[Part], plan: Plan, build: Build, commands: Commands) -> dict[str, str]:
    """Builds for all parts, then runs them; returns by name "ok", "left out: ..." or "FAILED: ..."."""
    environment = build.environment()
    verdicts = {part.name: f"left out: {why}" if (why := part.missing(environment)) else "" for part in parts}
    here = [part for part in parts if not verdicts[part.name]]
    ready = configured(here, build, commands)
    verdicts.update({part.name: "FAILED: it cannot be configured" for part in here if part not in ready})
    if ready:
        verdicts.update(built(ready, build, commands))
    for part in parts:
        verdicts[part.name] = verdicts[part.name] or run_part(part, plan, environment, commands)
        say(f"{part.name}: {verdicts[part.name]}", commands)
    return verdicts


def report(parts: Sequence[Part], verdicts: Mapping[str, str], plan: Plan, begin: float) -> str:
    """Returns the table: all figures that were written since `begin`, then all verdicts."""
    rows: list[Row] = []
    for part in parts:
        path = plan.results / f"{part.result}.json"
        if part.result and path.is_file() and path.stat().st_mtime >= begin:
            rows += [Row(**row) for row in json.loads(path.read_text())["rows"]]
    judged = [row.met for row in rows if row.met is not None]
    lines = [table(rows), f"\n{sum(judged)} of {len(judged)} targets met\n"] if rows else []
    width = max(len(name) for name in verdicts)
    return "\n".join([*lines, *(f"{name.ljust(width)}  {verdict}" for name, verdict in verdicts.items())])


def chosen(names: str) -> list[Part]:
    """Returns the parts that `names` lists, in the order of the table of parts."""
    wanted = [name for name in names.split(",") if name]
    unknown = [name for name in wanted if name not in {part.name for part in PARTS}]
    if unknown or not wanted:
        known = ", ".join(part.name for part in PARTS)
        raise argparse.ArgumentTypeError(f"'{names}': of {known}")
    return [part for part in PARTS if part.name in wanted]


def arguments_of(given: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu/run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="make DIR of this machine's packages; nothing else")
    parser.add_argument("--packages", type=Path, metavar="DIR", help="of --bundle (default: .cache/gpu-packages)")
    parser.add_argument("--only", type=chosen, default=list(PARTS), metavar="PART[,PART...]", help="some of the parts")
    parser.add_argument("--quick", action="store_true", help="few rounds, short trainings")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="end the run after this time, build included"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder for result files and log")
    parser.add_argument("--build", type=Path, default=DEFAULT_BUILD, metavar="DIR", help="where to build")
    return parser.parse_args(given)


def packages_of(given: Path | None, build: Path) -> Path | None:
    """Unpacks a bundle to `build`, and returns the folder of the packages; None if the machine has them."""
    folder = (given or DEFAULT_PACKAGES).absolute()
    if (folder / bundle.ARCHIVE).is_file():
        bundle.unpack(folder, build / "packages")
        return build / "packages"
    if given is not None:
        raise SystemExit(f"run: {given} was not made by --bundle: it has no {bundle.ARCHIVE}")
    return None


def make_bundle(folder: Path) -> int:
    """Makes the folder of packages; returns the exit status."""
    try:
        size = bundle.make(folder)
    except bundle.BundleError as error:
        say(f"no bundle: {error}")
        return 1
    say(f"{size / 2**20:.1f} MiB in {folder}; take it along, and name it with --packages")
    return 0


def run_here(arguments: argparse.Namespace, found: Sequence[str], commands: Commands) -> int:
    """Runs the selected parts on this machine; returns the exit status."""
    plan = Plan(arguments.build.absolute(), arguments.results.absolute(), arguments.quick)
    packages = packages_of(arguments.packages, plan.build)
    commands.note(f"\n{datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')} {commit()}")
    say(f"{shlex.join(sys.argv[1:])}: {', '.join(found)}; packages: {packages or 'of this machine'}", commands)
    begin = time.time()
    try:
        verdicts = run_all(arguments.only, plan, Build(plan.build, packages, commands), commands)
    except BuildError as error:
        say(f"cannot be configured: {error}", commands)
        if packages is None:
            say("--bundle makes a folder of packages, on a machine that has them, for one that has not")
        return 1
    text = report(arguments.only, verdicts, plan, begin)
    print(text)
    commands.note(text)
    return 1 if any(verdict.startswith("FAILED") for verdict in verdicts.values()) else 0


def main(given: Sequence[str] | None = None) -> int:
    """Runs the selected parts; returns the exit status (see the module)."""
    arguments = arguments_of(given)
    if arguments.bundle is not None:
        return make_bundle(arguments.bundle)
    # A build for a machine that cannot run it would be in vain.
    try:
        found = gpus()
    except subprocess.TimeoutExpired as hung:
        say(f"no GPU: nvidia-smi has not answered in {hung.timeout:.0f} s. Likely cause: the driver hangs")
        return 2
    if not found:
        say("no GPU: nvidia-smi finds none here; --bundle DIR prepares what a machine that has one needs")
        return 2
    for tool in ("nvcc", "cmake"):
        if shutil.which(tool) is None:
            say(f"no {tool} on the PATH, so nothing can be built")
            return 1
    end = time.monotonic() + 60 * arguments.minutes
    arguments.results.mkdir(parents=True, exist_ok=True)
    with keeping() as mark:
        return run_here(arguments, found, Commands(mark, arguments.results.absolute() / LOG, end))


if __name__ == "__main__":
    exit_on_signals()
    sys.exit(main())
