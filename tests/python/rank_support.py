"""Starts the cases of a module in tests/python/ranks once on several ranks, and returns the outcome of each."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from warm import Pool

HERE = Path(__file__).resolve().parent
LIMIT_SECONDS = 270  # for jobs that hang; one of TensorFlow takes 150 s beside two others on slow processors


def case_names(module: str) -> list[str]:
    """Returns the names of the cases that `module` defines, without importing it."""
    tree = ast.parse((HERE / "ranks" / f"{module.replace('.', '/')}.py").read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("case_")]


def environment() -> dict[str, str]:
    """Returns variables for ranks: the packages of this interpreter, the folder of the cases, one thread each."""
    paths = [str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "OMP_NUM_THREADS": "1"}


def clean_environment() -> dict[str, str]:
    """Returns environment() without the variables that a launcher sets."""
    return {k: v for k, v in environment().items() if not k.startswith(("SIRTAKI_", "OMPI_", "PMI_", "SLURM_"))}


Variables = tuple[tuple[str, str], ...]


@cache
def pool() -> Pool:
    """Returns the warm interpreters of this pytest run."""
    return Pool()


def launch(
    np: int,
    *program: str,
    limit: float = LIMIT_SECONDS,
    options: tuple[str, ...] = (),
    variables: Variables = (),
    warm: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on `np` ranks with options of the launcher; returns the output of all ranks together.

    Args:
        np: number of ranks.
        program: a file, `-c TEXT` or `-m MODULE`, and its arguments.
        limit: time limit in seconds.
        options: launcher options.
        variables: environment variables, added to those of environment().
        warm: the ranks are forks of an interpreter that has imported the framework, which saves seconds. Leave it unset
        in tests of signals, exits and imports: a fork has another parent, process group and way to its main
        module.
    """
    from sirtaki.launch import launcher_path

    env = {**environment(), **dict(variables)}
    command = pool().command(program, env) if warm else (sys.executable, *program)
    return subprocess.run(
        [launcher_path(), "-np", str(np), *options, *command],
        env=env,
        cwd=HERE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=limit,
        check=False,
    )


@cache
def run_module(
    module: str, np: int, options: tuple[str, ...] = (), variables: Variables = ()
) -> tuple[list[dict[str, dict[str, str]]], str]:
    """Returns the outcomes of the cases by rank, and the output of the job."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = ("-m", "ranks.runner", module, folder)
            output = launch(np, *program, limit=LIMIT_SECONDS, options=options, variables=variables, warm=True).stdout
        except subprocess.TimeoutExpired as error:
            output = f"not over after {LIMIT_SECONDS} s\n{error.stdout or ''}"
        paths = [Path(folder, f"{rank}.json") for rank in range(np)]
        return [json.loads(path.read_text()) if path.exists() else {} for path in paths], output


def check_case(module: str, np: int, case: str, options: tuple[str, ...] = (), variables: Variables = ()) -> None:
    """Fails with the traceback of the first rank on which the case failed, or the job's output if it never ended.

    A rank that fails alone leaves the others waiting, in this case or in a later one; so the first failure of any case
    on any rank is reported first.
    """
    outcomes, output = run_module(module, np, options, variables)
    assert "AutoGraph could not transform" not in output, output[-4000:]
    for rank, outcome in enumerate(outcomes):
        assert not outcome.get(case, {}).get("error"), f"rank {rank}:\n{outcome[case]['error']}"
    failed = [
        f"{name} failed on rank {rank}:\n{what['error']}"
        for rank, outcome in enumerate(outcomes)
        for name, what in outcome.items()
        if what["error"]
    ]
    for rank, outcome in enumerate(outcomes):
        assert case in outcome, "\n".join(
            [f"rank {rank} never finished {case}", *failed, f"the job said:\n{output[-4000:]}"]
        )
