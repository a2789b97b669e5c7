"""A training for tests of jobs whose ranks come and go with hosts, and a second host on one machine."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch_support import PYTHON, Outcome, Run, running, wait_until

# Each rank trains on data of its own; without a framework, whose import takes longer than the test. In each step all
# compare the parameters of the step before. The training ends when the file "stop" is there. A rank whose "fail.SLOT"
# is there ends with code 3, one of "hang.SLOT" makes no step.
TRAIN = """
import os, sys, threading
from pathlib import Path
import numpy as np
import sirtaki.elastic
from sirtaki._numpy import numpy_ops
from sirtaki.objects import allgather_object
from sirtaki.ops import Average

slot, folder = int(os.environ["SIRTAKI_JOB_RANK"]), Path(sys.argv[1])
host, place = os.environ.get("HOROVOD_HOSTNAME", "-"), os.environ["SIRTAKI_JOB_LOCAL_RANK"]
sirtaki.init()
pace = threading.Event()

@sirtaki.elastic.run
def train(state):
    print("IN", slot, os.getpid(), sirtaki.rank(), sirtaki.size(), host, place, flush=True)
    while True:
        pace.wait(0.01)
        if (folder / f"fail.{slot}").exists():
            (folder / f"fail.{slot}").unlink()
            sys.exit(3)
        while (folder / f"hang.{slot}").exists():
            pace.wait(0.02)
        seen = allgather_object((state.step, state.weights.tolist(), (folder / "stop").exists()))
        assert all(entry[:2] == seen[0][:2] for entry in seen), seen
        if any(entry[2] for entry in seen):
            return
        gradient = state.weights - np.arange(4, dtype=np.float32) * sirtaki.rank()
        reduced = numpy_ops.allreduce(gradient, "gradient", Average, (1.0, 1.0), in_place=False)
        state.weights = state.weights - 0.01 * numpy_ops.start_one(reduced).wait()
        state.step += 1
        state.ranks += sirtaki.size()
        state.commit()

state = sirtaki.elastic.ObjectState(weights=np.ones(4, np.float32), step=0, ranks=0)
train(state)
result = state.weights.tolist()
print("DONE", slot, os.getpid(), sirtaki.rank(), sirtaki.size(), state.step, state.ranks, result, flush=True)
sirtaki.shutdown()
"""

# The launcher calls this in the place of ssh, so one machine is two hosts.
SSH = """#!/bin/sh
for command; do :; done
exec {prefix}sh -c "$command"
"""


# Process, host and local rank of each slot.
Seats = dict[int, tuple[int, str, int]]


def command(folder: Path, program: str = TRAIN) -> tuple[str, ...]:
    """Returns the command of a rank."""
    return (PYTHON, "-c", program, str(folder))


def with_false_ssh(folder: Path, prefix: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns an environment in which every remote host is this machine, with this prefix of its commands."""
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(prefix="".join(f"{word} " for word in prefix)))
    ssh.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def offer(folder: Path, *hosts: str) -> None:
    """Makes the script name these hosts from now on."""
    (folder / "new").write_text("".join(f"{host}\n" for host in hosts))
    (folder / "new").rename(folder / "hosts")


def script(folder: Path) -> tuple[str, ...]:
    """Returns options with a script that names the hosts of offer()."""
    return ("--host-discovery-script", f"cat '{folder}/hosts'", "--discovery-interval", "100ms")


def await_size(run: Run, size: int) -> Seats:
    """Waits until so many ranks train together."""
    seats: Seats = {}
    while len(seats) < size:
        match, _ = run.read_until(r"IN (\d+) (\d+) \d+ (\d+) (\S+) (\d+)")
        # The lines of one rank are in order; those of two hosts are not.
        seats.pop(int(match[1]), None)
        if int(match[3]) == size:
            seats[int(match[1])] = (int(match[2]), match[4], int(match[5]))
    return seats


def parent_of(process: int) -> int:
    """Returns the process that has started this one: the agent of its host."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def stop(run: Run, folder: Path) -> Outcome:
    """Ends the training and checks that all ranks have the same result."""
    (folder / "stop").touch()
    done = run.finish(60)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    ends = re.findall(r"DONE \d+ \d+ \d+ (\d+) (.*)", done.out)
    assert ends, text
    assert all(int(size) == len(ends) for size, _ in ends), text
    assert len({result for _, result in ends}) == 1, text
    return done


@contextmanager
def joinable(
    folder: Path, *options: str, prefix: tuple[str, ...] = (), program: str = TRAIN
) -> Iterator[tuple[Run, int]]:
    """Yields a job that hosts may join, with a secret in the folder, and its port."""
    options += ("--secret-file", str(folder / "secret"), "--horovod", *command(folder, program))
    with running(*options, prefix=prefix, stderr=subprocess.STDOUT) as run:
        port, _ = run.read_until(r"hosts may join: sirtakirun --join \S+:(\d+) --secret-file \S+ \[-np SLOTS\]")
        yield run, int(port[1])


@contextmanager
def joining(
    folder: Path, port: int, *more: str, address: str = "127.0.0.1", prefix: tuple[str, ...] = ()
) -> Iterator[Run]:
    """Yields a host that joins the job at this port."""
    options = ("--join", f"{address}:{port}", "--secret-file", str(folder / "secret"), *more)
    with running(*options, prefix=prefix, stderr=subprocess.STDOUT) as run:
        yield run


def ended(run: Run, code: int) -> Outcome:
    """Waits for the end of a process that must leave no agent and no rank behind."""
    done = run.finish(30)
    assert done.code == code, done.out
    wait_until(lambda: not run.marked(), 10, "agent and ranks have ended, too")
    return done
