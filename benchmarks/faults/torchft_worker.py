"""A rank of `churn` under torchft, in its own interpreter: `python -m benchmarks.faults.torchft_worker RECIPE SLOT`.

`wrapper` "ddp": its DistributedDataParallel; "hooks": an all-reduce for each gradient, for which backward waits at its
end. Its PureDistributedDataParallel does not wait, so ranks differ from the first step. The lighthouse is at
TORCHFT_LIGHTHOUSE.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from benchmarks.faults.records import Line, Log
from benchmarks.faults.task import Pace, Task


def main() -> None:
    """Trains until it is killed; samples are drawn by each rank."""
    recipe, slot = json.loads(sys.argv[1]), int(sys.argv[2])
    task = Task(recipe)

    def load(state: dict[str, Any]) -> None:
        task.model.load_state_dict(state["model"])
        task.optimizer.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict()}

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load,
        save,
        min_replica_size=recipe["least"],
        replica_id=f"slot{slot}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
        timeout=timedelta(seconds=10),
    )
    model: nn.Module = task.model
    works: list[Any] = []
    if recipe["wrapper"] == "ddp":
        model = DistributedDataParallel(manager, task.model)
    else:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda one: works.append(manager.allreduce(one.grad)))
    optimizer = Optimizer(manager, task.optimizer)
    log, pace = Log(recipe["folder"], slot), Pace(recipe["pace"])
    draw, attempts = random.Random(slot), 0
    while True:
        indices = draw.sample(range(recipe["dataset"]), recipe["batch"])
        attempts += 1
        optimizer.zero_grad()
        task.loss(model, indices).backward()
        while works:
            works.pop().wait()
        committed = manager.should_commit()
        if committed:  # as in optimizer.step(), which does not tell
            task.optimizer.step()
        step, busy = manager.current_step() + (not committed), pace.busy()
        place = (os.getpid(), slot, manager._quorum_id, step, manager.num_participants(), attempts)
        log.write(Line(time.monotonic(), *place, committed, 0, task.digest(), indices, busy))
        pace.wait()


if __name__ == "__main__":
    main()
