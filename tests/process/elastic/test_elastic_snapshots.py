"""Snapshots of elastic jobs under sirtakirun: all ranks are killed, and the next job goes on from the disk."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pytest
from launch_support import PYTHON, Outcome, launch

# Each step mixes numbers of all ranks into the values. The program kills all ranks at its end, or they have to leave in
# step 3, or it prints "DONE".
TRAIN = """
import hashlib, os, signal, sys, threading
import numpy as np
import sirtaki
from sirtaki.elastic import ObjectState, run
from sirtaki.objects import allgather_object

last, end = int(sys.argv[1]), sys.argv[2]
sirtaki.init()

def tell(what):
    print(what, state.step, hashlib.sha256(state.values.tobytes()).hexdigest()[:16], flush=True)

@run
def train(state):
    tell("BEGIN")
    while state.step < last:
        state.values = state.values * 3 + sum(allgather_object(state.step + sirtaki.rank()))
        state.step += 1
        if (state.step, end) == (3, "noticed"):
            os.kill(os.getpid(), signal.SIGTERM)
        state.commit()
        for thread in threading.enumerate():
            if thread.name == "srt-snapshot":
                thread.join()
        tell("AT")
    allgather_object(None)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)

state = ObjectState(step=0, values=np.arange(1000))
train(state)
print("DONE", flush=True)
sirtaki.shutdown()
"""


def train(folder: Path, last: int, end: str, *options: str, every: str = "0s") -> Outcome:
    options = ("--elastic", "1:2", "--elastic-snapshot-dir", str(folder), "--elastic-snapshot-every", every, *options)
    return launch("-np", "2", *options, PYTHON, "-c", TRAIN, str(last), end, timeout=60)


def test_a_job_goes_on_where_all_ranks_were_killed(tmp_path: Path) -> None:
    killed = train(tmp_path, 4, "killed")
    assert killed.code != 0
    (digest,) = set(re.findall(r"AT 4 (\w+)", killed.out))

    untold = train(tmp_path, 6, "ended")
    assert untold.code == 1, untold.err
    assert "has snapshots up to commit 4. To go on from there, add --elastic-resume yes; to begin anew" in untold.err
    assert "BEGIN" not in untold.out
    assert "is started again" not in untold.err
    assert "lost" not in untold.err, untold.err

    going_on = train(tmp_path, 6, "ended", "--elastic-resume", "yes")
    assert going_on.code == 0, going_on.err
    assert set(re.findall(r"BEGIN (\d+) (\w+)", going_on.out)) == {("4", digest)}
    assert going_on.out.count("DONE") == 2
    (told,) = re.findall(r"sirtaki: goes on from commit (\d+), written \S+ \S+ by a job of 2 ranks", going_on.err)
    assert told == "4"
    assert sorted(os.listdir(tmp_path)) == ["lock", "snapshot-000000000006", "snapshot-000000000007"]

    (end,) = set(re.findall(r"AT 6 (\w+)", going_on.out))
    ended = train(tmp_path, 6, "ended", "--elastic-resume", "auto")
    assert ended.code == 0, ended.err
    assert set(re.findall(r"BEGIN (\d+) (\w+)", ended.out)) == {("6", end)}
    assert "AT" not in ended.out
    assert ended.out.count("DONE") == 2
    assert "goes on from commit 7, the end of its training, written" in ended.err, ended.err


def test_ranks_that_all_have_to_leave_write_their_last_commit(tmp_path: Path) -> None:
    left = train(tmp_path, 6, "noticed", every="1h")
    assert left.code == 128 + signal.SIGTERM, left.err
    going_on = train(tmp_path, 4, "ended", "--elastic-resume", "auto", every="1h")
    assert going_on.code == 0, going_on.err
    steps = {int(step) for step in re.findall(r"BEGIN (\d+)", going_on.out)}
    assert len(steps) == 1
    assert min(steps) >= 3, left.err


LOCAL = """
import os, signal, sys, threading
import torch
import sirtaki.torch as hvd
from sirtaki.torch.elastic import TorchState

last, end = int(sys.argv[1]), sys.argv[2]
hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(2, 1)
plain = torch.optim.Adam(model.parameters(), 0.01)
optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), local_updates="fixed:steps=4,warmup=2")
local = optimizer._sirtaki_local

@hvd.elastic.run
def train(state):
    weights = hvd.allgather(model.weight.detach().clone())
    print("BEGIN", state.step, local._steps, local._warm, len({tuple(row) for row in weights.tolist()}), flush=True)
    while state.step < last:
        optimizer.zero_grad()
        model(torch.randn(4, 2)).square().sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        for thread in threading.enumerate():
            if thread.name == "srt-snapshot":
                thread.join()
    hvd.allreduce(torch.ones(1))
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.drain()

train(TorchState(model, optimizer, step=0))
print("DONE", flush=True)
hvd.shutdown()
"""


@pytest.mark.usefixtures("warm_ranks")
def test_local_updates_go_on_at_their_step_without_a_warmup(tmp_path: Path) -> None:
    options = ("--elastic", "1:2", "--elastic-snapshot-dir", str(tmp_path), "--elastic-snapshot-every", "0s")
    options += ("--elastic-resume", "auto")
    killed = launch("-np", "2", *options, PYTHON, "-c", LOCAL, "6", "killed", timeout=60)
    assert killed.code != 0
    assert re.findall(r"BEGIN .*", killed.out) == ["BEGIN 0 0 False 1"] * 2, killed.err
    going_on = launch("-np", "2", *options, PYTHON, "-c", LOCAL, "11", "ended", timeout=60)
    assert going_on.code == 0, going_on.err
    # Rank 0, and the other, which learns in its first step that the warm-up is over.
    assert set(re.findall(r"BEGIN .*", going_on.out)) == {"BEGIN 6 6 True 1", "BEGIN 6 6 False 1"}
    assert going_on.out.count("DONE") == 2
