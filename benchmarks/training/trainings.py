"""Real trainings as a benchmark's main process sees them: run for their losses, or timed; and what losses tell.

Owned by: a benchmark's main process, one thread.
Does not: train (benchmarks/training/learning.py does, in the workers), or choose what is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common.group import Group
from benchmarks.common.rig import Contender, Plan, interleave
from benchmarks.results import Row, make_row
from benchmarks.statistics import mean_estimate, point

TRAINING_SECONDS = 1800
#: What trainings are compared at: the loss that dense, synchronous training ends with, and so many nats more.
LOSS_EXCESS = 0.02


def train(group: Group, system: str, name: str, recipe: dict[str, Any], steps: int) -> list[float]:
    """Losses step by step, the mean of the ranks. `recipe`: of benchmarks/training/learning.py."""
    group.call("learn_prepare", system=system, name=name, recipe=recipe)
    group.call("learn_run", timeout=TRAINING_SECONDS, name=name, steps=steps)
    losses = group.call("learn_losses", name=name)
    group.call("learn_drop", names=[name])
    return mean_of_ranks(losses)


def time_steps(
    group: Group, trainings: Mapping[str, tuple[str, dict[str, Any]]], *, warm: int, blocks: int, steps: int
) -> dict[str, list[float]]:
    """Seconds of a step of every training, block by block in turns, after `warm` steps. By name: system and recipe."""
    for name, (system, recipe) in trainings.items():
        group.call("learn_prepare", system=system, name=name, recipe=recipe)
    group.call("learn_blocks", timeout=900, blocks=[[name, warm] for name in trainings])
    plan = Plan(pairs=blocks, min_pairs=blocks, block_seconds=0.0, block_iterations=steps)
    return interleave([Contender(name, group) for name in trainings], "learn_blocks", plan)


def time_alone(size: int, recipe: dict[str, Any], *, blocks: int, steps: int) -> list[float]:
    """Seconds of a step that sends nothing: as many processes, each a job of its own. How gradients would travel is no
    part of it.
    """
    recipe = {key: value for key, value in recipe.items() if key != "how"}
    with Group(size, ["alone"]) as group:
        group.call("learn_prepare", system="alone", name="alone", recipe=recipe)
        plan = Plan(pairs=blocks, min_pairs=blocks, block_seconds=0.0, block_iterations=steps)
        return interleave([Contender("alone", group)], "learn_blocks", plan)["alone"]


def mean_of_ranks(values: Sequence[Sequence[float]]) -> list[float]:
    """Step by step."""
    return [sum(of_step) / len(of_step) for of_step in zip(*values, strict=True)]


def ended(losses: Sequence[float], window: int) -> float:
    """The loss at the end: the mean of the last `window`."""
    return sum(losses[-window:]) / window


def control_rows(
    params: Mapping[str, Any], losses: Sequence[float], method: str, of_method: Sequence[float]
) -> list[Row]:
    """How much worse than a method its control ends, seed by seed; a method no better than that does nothing."""
    against = {**params, "against": method}
    gap = mean_estimate([loss - other for loss, other in zip(losses, of_method, strict=True)])
    least = point(gap, gap.low)
    return [
        make_row("control_loss_excess", against, gap, "nats", "higher"),
        make_row("control_loss_excess_lower_edge", against, least, "nats", "higher", target=0.0),
    ]


def smooth(losses: Sequence[float], window: int) -> list[float]:
    """Means over `window` steps, from the step at which the first is complete."""
    if len(losses) < window:
        return []
    total = sum(losses[:window])
    out = [total / window]
    for new, old in zip(losses[window:], losses, strict=False):
        total += new - old
        out.append(total / window)
    return out


def steps_to(losses: Sequence[float], target: float, window: int) -> int | None:
    """Steps until the smoothed loss is no more than the target; None: never."""
    for step, loss in enumerate(smooth(losses, window)):
        if loss <= target:
            return step + window
    return None
