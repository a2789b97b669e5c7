"""Real trainings from the view of the main process: runs for losses, runs for times, and figures from losses.

Owned by: the main process of a benchmark, one thread.
Does not: train (benchmarks/training/learning.py does, in the workers), or choose the trainings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common.group import Group
from benchmarks.common.rig import Contender, Plan, interleave
from benchmarks.results import Row, make_row
from benchmarks.statistics import mean_estimate, point

TRAINING_SECONDS = 1800
#: Nats of the target above the final loss of dense, synchronous training.
LOSS_EXCESS = 0.02


def train(group: Group, system: str, name: str, recipe: dict[str, Any], steps: int) -> list[float]:
    """Trains; returns the losses by step, as means over the ranks. `recipe`: see benchmarks/training/learning.py."""
    group.call("learn_prepare", system=system, name=name, recipe=recipe)
    group.call("learn_run", timeout=TRAINING_SECONDS, name=name, steps=steps)
    losses = group.call("learn_losses", name=name)
    group.call("learn_drop", names=[name])
    return mean_of_ranks(losses)


def time_steps(
    group: Group, trainings: Mapping[str, tuple[str, dict[str, Any]]], *, warm: int, blocks: int, steps: int
) -> dict[str, list[float]]:
    """Measures the seconds of a step of every training, block by block in turns, after `warm` steps.

    `trainings`: system and recipe by name.
    """
    for name, (system, recipe) in trainings.items():
        group.call("learn_prepare", system=system, name=name, recipe=recipe)
    group.call("learn_blocks", timeout=900, blocks=[[name, warm] for name in trainings])
    plan = Plan(pairs=blocks, min_pairs=blocks, block_seconds=0.0, block_iterations=steps)
    return interleave([Contender(name, group) for name in trainings], "learn_blocks", plan)


def time_alone(size: int, recipe: dict[str, Any], *, blocks: int, steps: int) -> list[float]:
    """Measures the seconds of a step that sends nothing: as many processes, each a job of its own.

    Ignores the settings of the reduction (`how`).
    """
    recipe = {key: value for key, value in recipe.items() if key != "how"}
    with Group(size, ["alone"]) as group:
        group.call("learn_prepare", system="alone", name="alone", recipe=recipe)
        plan = Plan(pairs=blocks, min_pairs=blocks, block_seconds=0.0, block_iterations=steps)
        return interleave([Contender("alone", group)], "learn_blocks", plan)["alone"]


def mean_of_ranks(values: Sequence[Sequence[float]]) -> list[float]:
    """Returns the means over the ranks, step by step."""
    return [sum(of_step) / len(of_step) for of_step in zip(*values, strict=True)]


def ended(losses: Sequence[float], window: int) -> float:
    """Returns the final loss: the mean of the last `window` steps."""
    return sum(losses[-window:]) / window


def control_rows(
    params: Mapping[str, Any], losses: Sequence[float], method: str, of_method: Sequence[float]
) -> list[Row]:
    """Rows of the final loss of a control above that of its method, seed by seed.

    A method that is no better than its control has no effect.
    """
    against = {**params, "against": method}
    gap = mean_estimate([loss - other for loss, other in zip(losses, of_method, strict=True)])
    least = point(gap, gap.low)
    return [
        make_row("control_loss_excess", against, gap, "nats", "higher"),
        make_row("control_loss_excess_lower_edge", against, least, "nats", "higher", target=0.0),
    ]


def smooth(losses: Sequence[float], window: int) -> list[float]:
    """Returns means over `window` steps, from the step at which the first window is complete."""
    if len(losses) < window:
        return []
    total = sum(losses[:window])
    out = [total / window]
    for new, old in zip(losses[window:], losses, strict=False):
        total += new - old
        out.append(total / window)
    return out


def steps_to(losses: Sequence[float], target: float, window: int) -> int | None:
    """Returns the steps until the smoothed loss is at most the target; None if it never is."""
    for step, loss in enumerate(smooth(losses, window)):
        if loss <= target:
            return step + window
    return None
