"""A training for horovod.torch.elastic whose hosts come and go.

In each round, rank 0 appends a line to the log, from which the discovery script takes the hosts of the next round, and
waits for the launcher to announce a change of hosts. The file "fail" makes the ranks of its numbers raise an error.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch

folder = Path(sys.argv[2])
rounds = (folder / "rounds").read_text().split()
STEPS = 4
PATIENCE_SECONDS = 30

torch.set_num_threads(1)
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, round=0, step=0, entered=0)


def step() -> None:
    """Makes one step on data of this rank."""
    optimizer.zero_grad()
    model(torch.full((4, 2), hvd.rank() + 1.0)).sum().backward()
    optimizer.step()


def weights() -> list[Any]:
    """Returns the weights."""
    return [p.tolist() for p in model.parameters()]


def report(state: Any) -> None:
    """Appends a line to the log."""
    entry = {
        "round": state.round,
        "entered": state.entered,
        "size": hvd.size(),
        "pid": os.getpid(),
        "host": os.environ["HOROVOD_HOSTNAME"],
        "start": int(os.environ["HOROVOD_RANK"]),
    }
    with (folder / "log").open("a") as log:
        log.write(json.dumps(entry) + "\n")


def await_change(state: Any) -> None:
    """Waits for a change of hosts if one follows."""
    now, then = (rounds[min(i, len(rounds) - 1)] for i in (state.round, state.round + 1))
    end = time.monotonic() + PATIENCE_SECONDS
    while now != then and state._host_messages.empty():
        if time.monotonic() > end:
            raise TimeoutError("nobody has announced a change of hosts")
        time.sleep(0.05)


@hvd.elastic.run
def train(state: Any) -> None:
    """Trains until all rounds are over."""
    state.entered += 1
    while state.round < len(rounds):
        failing = folder / f"fail.{state.round}"
        if failing.exists() and os.environ["HOROVOD_RANK"] in failing.read_text().split():
            raise ValueError("this rank shall fail")
        while state.step < STEPS:
            seen = hvd.allgather_object(weights())
            assert all(one == seen[0] for one in seen), seen
            step()
            state.step += 1
            state.commit()
        if hvd.rank() == 0:
            report(state)
            await_change(state)
        state.round += 1
        state.step = 0
        state.commit()


train(state)
