"""A Slurm cluster of one node for one test run: it has its own daemons, ports and folder, and ends with the test."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 10

CONFIG = """
ClusterName=sirtakitest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def _free_ports() -> list[int]:
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        return [first.getsockname()[1], second.getsockname()[1]]


def _configure(folder: Path) -> Path:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    path = folder / "slurm.conf"
    path.write_text(
        CONFIG.format(
            host=platform.node().split(".")[0],
            ports=_free_ports(),
            user=getpass.getuser(),
            folder=folder,
            cores=os.cpu_count(),
        )
    )
    return path


def _wait_for_node(env: dict[str, str], daemons: list[subprocess.Popen[bytes]], folder: Path) -> None:
    pause = threading.Event()
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and all(daemon.poll() is None for daemon in daemons):
        states = subprocess.run(["sinfo", "-h", "-o", "%t"], env=env, capture_output=True, text=True, check=False)
        if states.stdout.split() == ["idle"]:
            return
        pause.wait(0.1)
    logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
    raise RuntimeError(f"the Slurm daemons did not come up:\n{logs}")


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Runs slurmctld and slurmd in `folder`; yields the variables with which `srun` finds them."""
    for program in ("srun", "sinfo", "slurmctld", "slurmd"):
        if shutil.which(program) is None:
            raise RuntimeError(f"{program} is missing; scripts/setup.sh compat installs it")
    env = {**os.environ, "SLURM_CONF": str(_configure(folder))}
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for program in ("slurmctld", "slurmd"):
            daemons.append(
                subprocess.Popen(
                    [program, "-D"],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        _wait_for_node(env, daemons, folder)
        yield {"SLURM_CONF": env["SLURM_CONF"]}
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
