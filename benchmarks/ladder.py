"""The cost of each compression level in training loss, by optimizer: a ladder for `compression=auto`.

    python -m benchmarks.ladder [--quick] [--cases cnn/sgd] [--levels int8,twobit] [--parts costs,rates] [--resume]

One process trains four simulated ranks (benchmarks/training/simulated_ranks.py), so losses depend on no time and a
busy machine does no harm. Every level trains from the same weights on the same batches as dense training, once for each
seed. The learning rate is tuned over factors of 2 for dense training and kept for the levels, as in a job whose
compression changes while it runs; part `rates` adds the cost at the best of half, once and twice that rate. Each
finished training is kept, so --resume continues. SOAP and Shampoo need the package pytorch_optimizer (measured with
4.1.0).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.common.rig import finish, parse, run, say
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import exactly, mean_estimate
from benchmarks.training import compression_plots
from benchmarks.training.kept_losses import training_key
from benchmarks.training.simulated_codecs import DENSE, LEVELS, ROUNDING
from benchmarks.training.simulated_ranks import SimulatedRanks, train
from benchmarks.training.trainings import LOSS_EXCESS, ended

RANKS = 4
#: Batch of a rank, steps of a training, and number of seeds; losses of the CNN vary more, and it trains faster.
TASKS = {"transformer": (4, 300, 3), "cnn": (16, 300, 6), "convnet": (16, 300, 3)}
WARM_UP_PART = 20
#: Steps of which the mean loss is kept, and the number of these means that make the final loss.
KEPT_STEPS, LAST = 10, 5
QUICK_STEPS = 10
FACTORS = (0.5, 1.0, 2.0)
PARTS = ("costs", "rates")
_MOST_DOUBLINGS = 4
_UP_TO_RANK_8 = (ROUNDING, "int8", "int4", "powersgd_8")


@dataclass(frozen=True)
class Case:
    """A net and an optimizer; `lr`: the rate from which tuning starts; `batch`: of a rank, if not that of the task.

    `levels`: the levels that are measured, if not all.
    """

    task: str
    optimizer: str
    lr: float
    batch: int = 0
    levels: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Name on the command line."""
        return f"{self.task}/{self.optimizer}" + (f"/{self.batch}" if self.batch else "")

    def recipe(self, seed: int, lr: float, quick: bool) -> dict[str, Any]:
        """Recipe of a training, as benchmarks/training/simulated_ranks.py reads it."""
        batch, steps, _ = TASKS[self.task]
        batch, steps = self.batch or batch, QUICK_STEPS if quick else steps
        how = {"optimizer": self.optimizer, "lr": lr, "warm_up": steps // WARM_UP_PART, "steps": steps}
        return {"net": self.task, "batch": batch, "seed": seed, **how}


CASES = {
    case.name: case
    for case in (
        Case("transformer", "adamw", 0.016),
        Case("transformer", "sgd", 0.1),
        Case("cnn", "sgd", 0.05),
        Case("transformer", "adam", 0.016),
        Case("transformer", "muon", 0.016),
        Case("cnn", "adamw", 0.004),
        # Twice the batch: its gradients are less noisy, and levels cost more.
        Case("transformer", "adamw", 0.016, 8),
        Case("transformer", "sgd", 0.1, 8),
        # Kernels of convolutions, which are further from low rank than other matrices.
        Case("convnet", "sgd", 0.05),
        # Optimizers beside those of the tables of `auto`: the levels that decide whether they have those of AdamW.
        Case("transformer", "adafactor", 0.032, levels=_UP_TO_RANK_8),
        Case("cnn", "adafactor", 0.016, levels=_UP_TO_RANK_8),
        Case("transformer", "soap", 0.004, levels=_UP_TO_RANK_8),
        Case("cnn", "soap", 0.004, levels=_UP_TO_RANK_8),
        Case("transformer", "shampoo", 0.004, levels=_UP_TO_RANK_8),
        Case("cnn", "shampoo", 0.004, levels=_UP_TO_RANK_8),
        Case("cnn", "muon", 0.004, levels=(*_UP_TO_RANK_8, "powersgd_4")),
    )
}
#: Levels in the order in which they are measured: those that decide first.
FIRST = (ROUNDING, "int8", "powersgd_4", "powersgd_2", "powersgd_8", "twobit", "sparse_2%")


def fits(case: Case, level: str) -> bool:
    """Tells whether a case has a level. Momentum correction belongs to SGD."""
    if case.levels and level not in (DENSE, *case.levels):
        return False
    return case.optimizer == "sgd" or LEVELS[level].momentum == 0


class Ladder:
    """Final losses of all trainings; trains what the store does not hold."""

    def __init__(self, store: Store, quick: bool) -> None:
        self._store, self._quick = store, quick
        self._rates: dict[Case, float] = {}

    def loss(self, case: Case, level: str, lr: float, seed: int) -> float:
        """Returns the final loss of a training."""
        recipe = case.recipe(seed, lr, self._quick)
        key = training_key(f"{case.optimizer}/{level}/lr={lr:g}", RANKS, recipe)
        kept = self._store.trainings.get(key)
        if kept is None:
            losses = train(RANKS, recipe, LEVELS[level])
            kept = [ended(losses[:end], KEPT_STEPS) for end in range(KEPT_STEPS, len(losses) + 1, KEPT_STEPS)]
            self._store.trainings.keep(key, kept)
            say(f"{key}: {ended(kept, min(LAST, len(kept))):.4f}")
        return ended(kept, min(LAST, len(kept)))

    def tuned(self, case: Case) -> float:
        """Returns the best rate of dense training among factors of 2, by the first seed."""
        if case not in self._rates:
            self._rates[case] = case.lr if self._quick else tune(case.lr, lambda lr: self.loss(case, DENSE, lr, 1))
        return self._rates[case]

    def own_rate(self, case: Case, level: str) -> float:
        """Returns the best of the tuned rate and its neighbours for a level, by the first seed."""
        rates = [factor * self.tuned(case) for factor in ((1.0,) if self._quick else FACTORS)]
        return min(rates, key=lambda lr: self.loss(case, level, lr, 1))

    def losses(self, case: Case, level: str, lr: float) -> list[float]:
        """Returns the final losses, seed by seed."""
        seeds = 1 if self._quick else TASKS[case.task][2]
        return [self.loss(case, level, lr, seed) for seed in range(1, seeds + 1)]


def tune(start: float, loss: Callable[[float], float]) -> float:
    """Returns the rate of least loss: goes by factors of 2 in the direction that helps until it no longer does."""
    best = start
    for factor in (2.0, 0.5):
        for _ in range(_MOST_DOUBLINGS):
            if loss(best * factor) >= loss(best):
                break
            best *= factor
        if best != start:
            break
    return best


def measure(ladder: Ladder, cases: Sequence[Case], levels: Sequence[str], rates: bool) -> None:
    """Trains: the levels that decide for all cases, then the others, then at neighbouring rates."""
    for part in ([level for level in levels if level in FIRST], [level for level in levels if level not in FIRST]):
        for case in cases:
            for level in (DENSE, *part):
                if fits(case, level):
                    ladder.losses(case, level, ladder.tuned(case))
    for case in cases if rates else ():
        for level in levels:
            if fits(case, level):
                ladder.losses(case, level, ladder.own_rate(case, level))


def rows_of(ladder: Ladder, case: Case, levels: Sequence[str], rates: bool, quick: bool) -> list[Row]:
    """Rows of one net with one optimizer: cost in loss, bytes, and the loss of dense training."""
    lr = ladder.tuned(case)
    dense = ladder.losses(case, DENSE, lr)
    about: dict[str, Any] = {"task": case.task, "optimizer": case.optimizer, "ranks": RANKS}
    if case.batch:
        about["batch"] = case.batch
    rows = [make_row("loss", {**about, "level": DENSE, "lr": lr}, mean_estimate(dense), "nats", "lower")]
    for level in levels:
        if not fits(case, level):
            continue
        at = {"loss_cost": lr, **({"loss_cost_own_rate": ladder.own_rate(case, level)} if rates else {})}
        for metric, rate in at.items():
            found = ladder.losses(case, level, rate)
            cost = mean_estimate([loss - other for loss, other in zip(found, dense, strict=True)])
            params = {**about, "level": level, "lr": rate}
            rows.append(make_row(metric, params, cost, "nats", "lower", target=LOSS_EXCESS, by_value=True))
        share = SimulatedRanks(RANKS, case.recipe(1, lr, quick), LEVELS[level]).sent_share
        rows.append(make_row("sent_share", {**about, "level": level}, exactly(share), "share", "lower"))
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    names = [level for level in LEVELS if level != DENSE]
    options, store = parse("ladder", __doc__ or "", (), (RANKS,), (), cases=tuple(CASES), levels=names, parts=PARTS)
    torch.set_num_threads(1)
    cases = [CASES[name] for name in options.more["cases"]]
    levels, rates = options.more["levels"], "rates" in options.more["parts"]
    ladder = Ladder(store, options.quick)
    measure(ladder, cases, levels, rates)
    rows = [row for case in cases for row in rows_of(ladder, case, levels, rates, options.quick)]
    return finish(store, rows, compression_plots.ladder)


if __name__ == "__main__":
    sys.exit(run(main))
