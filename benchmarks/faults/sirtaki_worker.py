"""A rank of `churn` under sirtakirun: `python -m benchmarks.faults.sirtaki_worker RECIPE`, in JSON.

`loop` "run": in elastic.run, with a commit in each step; "plain": a loop as it is, in which each rank draws samples.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from typing import Any

from torch.utils.data import BatchSampler

import sirtaki.torch as hvd
from benchmarks.faults.records import Line, Log
from benchmarks.faults.task import Pace, Task
from sirtaki import basics


class Rank:
    """This process: its task, log and pace."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        self.recipe = recipe
        self.slot = int(os.environ["SIRTAKI_JOB_RANK"])
        self.task = Task(recipe)
        hvd.init()
        named = list(self.task.model.named_parameters())
        self.optimizer = hvd.DistributedOptimizer(self.task.optimizer, named)
        self.log = Log(recipe["folder"], self.slot)
        self.pace = Pace(recipe["pace"])
        self.attempts = 0

    def step(self, indices: list[int]) -> None:
        """Makes a step, which may raise the loss of a rank."""
        self.attempts += 1
        self.optimizer.zero_grad()
        self.task.loss(self.task.model, indices).backward()
        self.optimizer.step()

    def note(self, generation: int, step: int, epoch: int, indices: list[int]) -> None:
        """Writes the step down."""
        busy = self.pace.busy()
        place = (os.getpid(), self.slot, generation, step, hvd.size(), self.attempts)
        every = self.recipe.get("evaluate")
        loss = self.task.held_out_loss() if every and hvd.rank() == 0 and step % every == 0 else None
        made = (bool(self.optimizer.committed), epoch, self.task.digest(), indices, busy, loss)
        self.log.write(Line(time.monotonic(), *place, *made))


def train_plain(rank: Rank) -> None:
    """Trains in a loop that knows of no losses."""
    draw = random.Random(rank.slot)
    dataset, batch = range(rank.recipe["dataset"]), rank.recipe["batch"]
    for step in itertools.count(1):
        indices = draw.sample(dataset, batch)
        rank.step(indices)
        rank.note(basics.generation(), step, 0, indices)
        rank.pace.wait()
        if step == rank.recipe["steps"]:
            return


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, rank: Rank) -> None:
    """Trains from the last commit."""
    state.generation += 1  # of the state, so that ranks that join have the same number
    while True:
        for batch, indices in enumerate(BatchSampler(state.sampler, rank.recipe["batch"], drop_last=False)):
            rank.step(indices)
            state.sampler.record_batch(batch, len(indices))
            state.step += 1
            rank.note(state.generation, state.step, state.epoch, indices)
            if state.step % rank.recipe.get("commit_every", 1) == 0:
                state.commit()
            rank.pace.wait()
            if state.step == rank.recipe["steps"]:
                return
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()


def main() -> None:
    """Trains until the job is ended, or for `steps` of the recipe."""
    recipe = json.loads(sys.argv[1])
    rank = Rank(recipe)
    if recipe["loop"] == "plain":
        train_plain(rank)
    else:
        sampler = hvd.elastic.ElasticSampler(range(recipe["dataset"]))
        numbers = {"epoch": 0, "step": 0, "generation": 0}
        train(hvd.elastic.TorchState(rank.task.model, rank.optimizer, sampler=sampler, **numbers), rank)
    hvd.shutdown()


if __name__ == "__main__":
    main()
