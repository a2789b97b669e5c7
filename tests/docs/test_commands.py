"""The commands of README.md and of the pages run as they are written, with small programs in place of the user's.

Commands for other programs than those of Sirtaki, and those that need more than one command at a time, are in
ELSEWHERE. Code in Python compiles, and every name of Sirtaki in it exists.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/process")]

from launch_support import launch, launcher_path
from ssh_hosts import Hosts, unavailable_reason

pytestmark = pytest.mark.usefixtures("warm_ranks")

PAGES = [ROOT / "README.md", *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "decisions" not in p.parts)]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN = ("sirtakirun", "sirtaki")
#: Beginning or part of a command -> file with the test that runs such a command.
ELSEWHERE = {
    "--join": "tests/process/elastic/test_elastic_join.py",
    "--hub": "tests/docs/test_hub_recipes.py",
    "examples/": "tests/process/test_examples.py",
    "--elastic-resume": "tests/process/elastic/test_elastic_snapshots.py",
    "…": "tests/python/test_parallel.py",
}
LIMIT_SECONDS = 120.0
#: Commands of the pages so far, many of which start in the same way.
RAN: set[tuple[str, ...]] = set()
NAMES = {"alpha": "near_address", "node1": "near_address", "beta": "far_address", "node2": "far_address"}
TRAIN = """
import torch
import {module} as hvd

hvd.init()
print("sum", int(hvd.allreduce(torch.ones(1), op=hvd.Sum)), "of", hvd.size())
hvd.shutdown()
"""
MODEL = "import torch\n\nmodel = torch.nn.Linear(100, 10)\nexample_input = torch.zeros(1, 100)\n"


def commands(page: Path) -> list[list[str]]:
    """Returns the words of each command for a program of Sirtaki."""
    found = []
    for language, text in BLOCK.findall(page.read_text()):
        for line in text.splitlines() if not language else ():
            command = re.sub(r"\s+#\s.*$", "", line.strip())
            if command.split(" ")[0] in OWN and not any(part in command for part in ELSEWHERE):
                found.append(shlex.split(command))
    return found


def free_port() -> int:
    """Returns a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def safetensors() -> bytes:
    """Returns a file of one tensor in the format of safetensors."""
    header = json.dumps({"weight": {"dtype": "F32", "shape": [100, 10], "data_offsets": [0, 4000]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4000)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts | None]:
    if unavailable_reason() is not None:
        yield None
        return
    with Hosts.of_a_test(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def run_launcher(words: list[str], hosts: Hosts | None, folder: Path, env: dict[str, str]) -> None:
    """Runs a command of sirtakirun, between network namespaces if it names hosts."""
    prefix: tuple[str, ...] = ()
    if "-H" in words:
        if hosts is None:
            pytest.skip(str(unavailable_reason()))
        at = words.index("-H") + 1
        words[at] = re.sub(r"[a-z]+\d?(?=[:,]|$)", lambda name: getattr(hosts, NAMES[name[0]]), words[at])
        words[1:1] = hosts.arguments()
        prefix = hosts.inside(hosts.near)
    if "--metrics-port" in words:
        words[words.index("--metrics-port") + 1] = str(free_port())
    (folder / "train.py").write_text(TRAIN.format(module="horovod.torch" if "--horovod" in words else "sirtaki.torch"))
    (folder / "train_ddp.py").write_text(TRAIN.format(module="sirtaki.torch"))
    words = [word.replace("/local/", f"{folder}/") for word in words]
    done = launch(*words[1:], prefix=prefix, cwd=folder, timeout=LIMIT_SECONDS, env=env)
    assert done.code == 0, f"{words}: {done.out}{done.err}"
    if "--check" not in words:
        sums = re.findall(r"sum (\d+) of (\d+)", done.out)
        assert {found == size for found, size in sums} == {True}, f"{words}: {done.out}{done.err}"


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_the_page_run(page: Path, hosts: Hosts | None, tmp_path: Path) -> None:
    env = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    (tmp_path / "hosts.sh").write_text("#!/bin/sh\necho localhost:4\n")
    (tmp_path / "hosts.sh").chmod(0o755)
    for words in commands(page):
        if tuple(words) in RAN:
            continue
        RAN.add(tuple(words))
        if words[0] == "sirtakirun":
            run_launcher(words, hosts, tmp_path, env)
            continue
        program = [str(Path(launcher_path()).with_name("sirtaki")), *words[1:]]
        done = subprocess.run(
            program,
            cwd=tmp_path,
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        assert done.stdout, words


def test_what_runs_elsewhere_is_there() -> None:
    for part, path in ELSEWHERE.items():
        assert (ROOT / path).exists(), f"{part}: {path}"


def python_blocks() -> Iterator[tuple[str, str]]:
    """Yields name and text of each block of Python code."""
    for page in PAGES:
        for number, (language, text) in enumerate(BLOCK.findall(page.read_text())):
            if language == "python":
                yield f"{page.relative_to(ROOT)}-{number}", text


def test_code_of_the_pages_uses_names_that_exist() -> None:
    wrong = "import sirtaki.torch as hvd\nfrom sirtaki import nothing\nhvd.also_nothing()\n"
    done = subprocess.run(
        [sys.executable, ROOT / "tests/docs/page_names.py"],
        input=json.dumps(dict(python_blocks()) | {"wrong": wrong}),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    missing = json.loads(done.stdout)
    assert missing.pop("wrong") == ["sirtaki.nothing", "hvd.also_nothing"]
    assert {page: names for page, names in missing.items() if names} == {}
