"""The recipes of docs/elastic/hub.md train, with processes of this machine in place of pods, tasks and nodes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/process"), str(ROOT / "tests/python")]

from launch_support import Outcome, Run, held_port, launcher_path, running, wait_until
from slurm_cluster import slurm_cluster

PAGE = (ROOT / "docs/elastic/hub.md").read_text()
PORT = "41000"  # of the page
LIMIT_SECONDS = 120.0
TRAIN = """
import os
import sirtaki
from sirtaki.elastic import ObjectState, run
from sirtaki.objects import allgather_object

sirtaki.init()

@run
def train(state):
    while state.step < 3:
        allgather_object(state.step)
        state.step += 1
        state.commit()

train(ObjectState(step=0))
print("DONE", sirtaki.size(), flush=True)
sirtaki.shutdown()
"""
SRUN = """#!/bin/sh
# Starts the command behind its options once for each node.
while case "$1" in --*) true ;; *) false ;; esac; do shift; done
for node in 1 2 3 4; do "$@" & done
wait
"""
RAY = """
import threading, types

util = types.SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

def init():
    pass

def remote(**options):
    assert options["max_retries"] == -1
    def start(function, *arguments):
        threading.Thread(target=function, args=arguments).start()
    return lambda function: types.SimpleNamespace(remote=lambda *arguments: start(function, *arguments))
"""


def block(language: str) -> str:
    """Returns the only block of the page in this language."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


Record = Callable[..., None]


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Returns a function that keeps launcher, ranks and version of a recipe among the results of `make compat`."""

    def keep(launcher: str, ranks: int, *ask_version: str) -> None:
        said = subprocess.run(ask_version, capture_output=True, text=True, check=True).stdout
        (version,) = re.findall(r"\d+\.[\w.+-]+", said)
        facts = {"launcher": launcher, "ranks": ranks, "version": version, "door": "elastic hub"}
        for name, value in facts.items():
            record_property(name, value)

    return keep


@pytest.fixture
def port() -> Iterator[str]:
    """Returns a port for the hub."""
    with held_port() as held:
        yield str(held)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Returns the environment by which a process of a recipe finds its programs and files."""
    (tmp_path / "train.py").write_text(TRAIN)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "SLURM_JOB_ID": "7"}
    return {"cwd": tmp_path, "env": env, "stderr": subprocess.STDOUT}


def trained(run: Run, ranks: set[str]) -> Outcome:
    """Waits for the end of a training with one of these numbers of ranks, and of all that it has started."""
    done = run.finish(LIMIT_SECONDS)
    assert done.code == 0, done.out
    sizes = re.findall(r"DONE (\d+)", done.out)
    assert sizes, done.out
    assert set(sizes) <= ranks, done.out
    wait_until(lambda: not run.marked(), 10, "all processes have ended")
    return done


def pod_of(resource: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = resource["spec"]["template"]["spec"]
    return pod


def test_the_resources_for_kubernetes_belong_together() -> None:
    service, hub, workers = yaml.safe_load_all(block("yaml"))
    assert [one["kind"] for one in (service, hub, workers)] == ["Service", "Job", "Deployment"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == hub["spec"]["template"]["metadata"]["labels"]
    assert workers["spec"]["selector"]["matchLabels"] == workers["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] != workers["spec"]["template"]["metadata"]["labels"]
    for resource in (hub, workers):
        pod = pod_of(resource)
        (container,) = pod["containers"]
        assert all(isinstance(word, str) for word in container["command"]), "Kubernetes takes no numbers there"
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert mounts.keys() == volumes.keys()
        assert volumes["secret"]["secret"]["defaultMode"] == 0o400
        assert mounts["secret"] == "/secret"
        grace = re.search(r"--term-grace (\d+)s", " ".join(container["command"]))
        assert grace is None or int(grace[1]) < pod["terminationGracePeriodSeconds"]
    words = pod_of(workers)["containers"][0]["command"]
    assert f"{service['metadata']['name']}:{PORT}" == words[words.index("--join") + 1]
    assert hub["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_the_commands_for_kubernetes_train(tmp_path: Path, port: str, settings: dict[str, Any], record: Record) -> None:
    record("sirtakirun", 2, launcher_path(), "--version")
    _, hub, workers = yaml.safe_load_all(block("yaml"))
    # A volume of a Secret is a folder of links.
    (tmp_path / "data").write_text("ab" * 32)
    (tmp_path / "data").chmod(0o400)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/job").symlink_to(tmp_path / "data")
    commands = []
    for resource in (hub, workers):
        words = pod_of(resource)["containers"][0]["command"]
        commands.append(
            [re.sub(r"^/(?=se|sn)", f"{tmp_path}/", word).replace("train:", "127.0.0.1:") for word in words]
        )
        commands[-1] = [word.replace(PORT, port) for word in commands[-1]]
    with (
        running(*commands[0][1:], **settings) as run,
        running(*commands[1][1:], **settings) as first,
        running(*commands[1][1:], **settings) as second,
    ):
        trained(run, {"2"})
        for worker in (first, second):
            assert worker.finish(LIMIT_SECONDS).code == 0
    assert list((tmp_path / "snapshots").glob("snapshot-*"))


def test_the_batch_script_for_slurm_trains(tmp_path: Path, port: str, settings: dict[str, Any]) -> None:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "batch").write_text(block("bash").replace(PORT, port))
    with running(str(tmp_path / "batch"), program="bash", **settings) as run:
        trained(run, {"4"})
    assert (tmp_path / "job.7.secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.compat
def test_slurm_runs_the_batch_script_on_two_tasks_of_a_node(
    tmp_path: Path, port: str, settings: dict[str, Any], record: Record
) -> None:
    record("sbatch (Slurm)", 2, "slurmctld", "-V")
    script = block("bash").replace(PORT, port).replace("-np 4", "-np 2")
    (tmp_path / "batch").write_text(script.replace("--nodes=4 --ntasks-per-node=1", "--nodes=1 --ntasks-per-node=2"))
    (tmp_path / "cluster").mkdir()
    command = ["sbatch", "--wait", "--output", str(tmp_path / "out"), str(tmp_path / "batch")]
    with slurm_cluster(tmp_path / "cluster") as variables:
        env = {**os.environ, **settings["env"], **variables}
        done = subprocess.run(command, cwd=tmp_path, env=env, timeout=LIMIT_SECONDS, check=False)
    output = (tmp_path / "out").read_text()
    assert done.returncode == 0, output
    assert output.count("DONE 2\n") == 2, output


def test_the_driver_for_ray_trains(tmp_path: Path, port: str, settings: dict[str, Any]) -> None:
    (tmp_path / "ray.py").write_text(RAY)
    (tmp_path / "driver.py").write_text(block("python").replace(PORT, port))
    with running(str(tmp_path / "driver.py"), program=sys.executable, **settings) as run:
        trained(run, {"2", "3", "4"})


def test_torchrun_starts_hosts_again_but_no_ranks_of_a_hub(
    tmp_path: Path, port: str, settings: dict[str, Any], record: Record
) -> None:
    torch = pytest.importorskip("torch")
    record("torchrun", 1, "echo", torch.__version__)
    (line,) = re.findall(r"^torchrun .*--join.*$", PAGE, re.MULTILINE)
    words = shlex.split(line.replace(f"hub:{PORT}", f"127.0.0.1:{port}"))
    # Without it, torchrun listens on a fixed port, at which programs of other tests may meet.
    own = ("--standalone",)
    torchrun = {"program": str(Path(sys.executable).with_name("torchrun")), **settings}
    hub = ("--hub", "--elastic", "1:1", "--join-port", port, "--secret-file", "job.secret", "python")
    waits = "import signal, sirtaki; sirtaki.init(); print('IN'); signal.pause()"
    with running(*hub, "-c", waits, **settings) as run:
        with running(*own, "--nproc-per-node", "1", "train.py", **torchrun) as alone:
            trained(alone, {"1"})
        with running(*own, *words[1:], **torchrun) as host:
            run.read_until("IN")
            for process, command in host.marked().items():
                if "--join" in command[1:2]:
                    os.kill(process, signal.SIGKILL)
            assert run.finish(LIMIT_SECONDS).code == 1, "the job has lost its host"
            with running(*hub, "train.py", **settings) as again:
                trained(again, {"1"})
            assert host.finish(LIMIT_SECONDS).code == 0


def test_the_loop_starts_a_hub_again_that_was_killed(
    tmp_path: Path, port: str, settings: dict[str, Any], record: Record
) -> None:
    record("sirtakirun", 2, launcher_path(), "--version")
    end = "not any(allgather_object(os.path.exists('stop'))):"
    (tmp_path / "train.py").write_text(TRAIN.replace("state.step < 3:\n        allgather_object(state.step)", end))
    (tmp_path / "loop").write_text(block("sh").replace(PORT, port).replace("/dev/shm", str(tmp_path)))
    join = ("--join", f"127.0.0.1:{port}", "--secret-file", "job.secret", "-np", "2")
    with running(str(tmp_path / "loop"), program="sh", **settings) as run, running(*join, **settings) as host:
        wait_until(lambda: list((tmp_path / "job").glob("snapshot-*")), LIMIT_SECONDS, "there is a snapshot")
        (hub,) = [process for process, command in run.marked().items() if "--hub" in command]
        os.kill(hub, signal.SIGKILL)
        run.read_until("goes on from commit")
        (tmp_path / "stop").touch()
        trained(run, {"2"})
        assert host.finish(LIMIT_SECONDS).code == 0
