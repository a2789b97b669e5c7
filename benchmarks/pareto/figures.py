"""Rows of `frontier` for one training on one link. Pure; standard library only.

Ratios are judged by their value: few seeds make intervals wide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.common.contest import ratio_row
from benchmarks.common.rig import LOOPBACK
from benchmarks.local.cases import step_at
from benchmarks.pareto.entrants import (
    ALONE,
    BOTH_AUTO,
    COMPRESSION_AUTO,
    DDP,
    DILOCO,
    LOCAL_AUTO,
    POWERSGD,
    Case,
)
from benchmarks.pareto.runs import Run
from benchmarks.results import Row, make_row
from benchmarks.statistics import estimate, exactly, mean_estimate, median
from benchmarks.training.trainings import LOSS_EXCESS

#: Rate in Mbit/s -> times as fast as DDP, where a training that sends nothing is so much faster.
OVER_DDP = {"100": 6.0, "20": 12.0, "5": 25.0}
#: Baselines -> times as fast as the best of them, where it takes EXPOSED times as long as without communication.
OVER_BEST_OF = {"powersgd": (POWERSGD, 1.2), "diloco": (DILOCO, 1.3)}
EXPOSED, NEVER_WORSE = 1.4, 0.97
#: Both `auto` against the better one of them alone.
SINGLE, OVER_SINGLE = (COMPRESSION_AUTO, LOCAL_AUTO), 1.0
#: Largest share of the time that ranks with local steps wait, and the links for which it is asked.
MOST_EXPOSED, EXPOSED_NETS = 0.05, ("100", "20")
#: (net, optimizer) -> times fewer bytes than DDP sends, asked on links of few Mbit/s.
FEWER_BYTES = {("cnn", "sgd"): 100.0, ("transformer", "adamw"): 60.0, ("transformer", "muon"): 200.0}
SLOW_NETS = ("20", "5")
#: Nets whose accuracy with both `auto` is not below that of DDP.
AS_ACCURATE = ("cnn",)
#: Nats above the final loss of DDP that many methods reach which miss the target.
NEAR = 0.1
CURVE = "loss_curve"
#: Points of a curve in the result file.
CURVE_POINTS = 15


@dataclass(frozen=True)
class Contest:
    """All methods of one case, seed by seed. `references`: runs whose final losses set the target; empty: DDP's."""

    case: Case
    runs: Mapping[str, Sequence[Run]]
    rates: Mapping[str, float]  # learning rates by method
    references: Sequence[Run] = ()

    def targets(self, excess: float = LOSS_EXCESS) -> list[float]:
        """Loss to reach, seed by seed: the final loss of the reference and some nats more."""
        return [run.final_loss + excess for run in self.references or self.runs[DDP]]

    def steps(self, name: str, excess: float = LOSS_EXCESS) -> list[float | None]:
        """Steps of a method to the target, seed by seed; None where the training does not reach it."""
        return [step_at(run, goal) for run, goal in zip(self.runs[name], self.targets(excess), strict=True)]

    def times(self, excess: float = LOSS_EXCESS) -> dict[str, list[float]]:
        """Seconds to the target, seed by seed, of the methods that reach it with all seeds."""
        out = {}
        for name, runs in self.runs.items():
            steps = [step for step in self.steps(name, excess) if step is not None]
            if len(steps) == len(runs):
                out[name] = [run.seconds_at(step) for run, step in zip(runs, steps, strict=True)]
        return out

    def without_sending(self, name: str) -> float:
        """Median seconds of as many steps as a method makes to the target, without communication."""
        pairs = zip(self.runs[ALONE], self.steps(name), strict=True)
        return median([alone.seconds_at(step) for alone, step in pairs if step is not None])


def rows_of(contest: Contest) -> list[Row]:
    """Returns the rows of all methods, and those of `both_auto` against the others."""
    times = contest.times()
    rows: list[Row] = []
    for name in contest.runs:
        rows += method_rows(contest, name, times)
    if BOTH_AUTO in contest.runs:
        rows += against_rows(contest, times)
    return rows


def any_length(contests: Sequence[Contest]) -> Contest:
    """Makes a contest of one case in which every method trains for the number of steps that suits it best.

    `contests`: trainings of the same net on the same link that differ in their number of steps alone. The target is
    that of the first of them. The best length of a method reaches it first; the training that sends nothing has the
    longest one.
    """
    first = contests[0]
    aimed = [replace(one, references=first.runs[DDP]) for one in contests]
    reached = [one.times() for one in aimed]
    best = {}
    for name in first.runs:
        lengths = [i for i, times in enumerate(reached) if name in times]
        best[name] = aimed[min(lengths, key=lambda i: median(reached[i][name]), default=0)]
    best[ALONE] = max(aimed, key=lambda one: one.case.training.steps)
    runs = {name: one.runs[name] for name, one in best.items()}
    rates = {name: one.rates[name] for name, one in best.items()}
    return Contest(first.case, runs, rates, first.runs[DDP])


def any_length_rows(contests: Sequence[Contest]) -> list[Row]:
    """Returns the rows of a contest in which the number of steps is free: seconds of each method, and speed-ups.

    `steps` of a row are those of the first contest, whose target counts; `made` are those of the method.
    """
    contest = any_length(contests)
    times = contest.times()
    tried = {"tried": ", ".join(str(one.case.training.steps) for one in contests)}
    rows = []
    for name in times:
        if name != ALONE:
            made = {"method": name, "made": contest.runs[name][0].steps, "lr": contest.rates[name]}
            params, bound = {**contest.case.params, **tried, **made}, contest.without_sending(name)
            rows.append(make_row("seconds_any_length", params, estimate(times[name]), "s", "lower", bound=bound))
    if BOTH_AUTO in contest.runs:
        for row in against_rows(contest, times):
            rows.append(replace(row, metric=f"{row.metric}_any_length", params={**row.params, **tried}))
    return rows


def method_rows(contest: Contest, name: str, times: Mapping[str, list[float]]) -> list[Row]:
    """Rows of seconds, losses, steps and bytes of a method; no training is shorter than one that sends nothing."""
    case, runs, alone = contest.case, contest.runs[name], contest.runs[ALONE]
    params = {**case.params, "method": name, "clock": runs[0].clock, "lr": contest.rates[name]}
    reached = [step for step in contest.steps(name) if step is not None]
    rows = []
    if name in times:
        bound = None if name == ALONE else contest.without_sending(name)
        rows.append(make_row("seconds_to_loss", params, estimate(times[name]), "s", "lower", bound=bound))
    near = contest.times(NEAR).get(name)
    if near is not None:
        rows.append(make_row("seconds_near_loss", params, estimate(near), "s", "lower"))
    pairs = list(zip(runs, contest.targets(), strict=True))
    above = mean_estimate([run.final_loss - goal for run, goal in pairs])
    seeds = {**params, "reached": f"{len(reached)} of {len(runs)} seeds"}
    rows.append(make_row("loss_above_target", seeds, above, "nats", "lower"))
    if name == ALONE:
        rows.append(make_row("step_seconds", params, estimate([run.step for run in runs]), "s", "lower"))
        return rows
    rows.append(make_row("final_loss", params, mean_estimate([run.final_loss for run in runs]), "nats", "lower"))
    unit = "nats" if case.training.task == "transformer" else "share"
    rows.append(make_row("quality", params, mean_estimate([run.quality for run in runs]), unit, "higher"))
    if name == BOTH_AUTO and unit == "share":
        rows.append(accuracy_row(contest, params))
    bound = median([run.step for run in alone])
    rows.append(make_row("step_seconds", params, estimate([run.step for run in runs]), "s", "lower", bound=bound))
    if case.net != LOOPBACK:
        sent = [run.sent[-1] for run in runs]
        rows.append(make_row("sent_bytes", params, estimate(sent), "bytes", "lower"))
        wanted = FEWER_BYTES.get((case.training.task, case.training.optimizer))
        target = wanted if name == BOTH_AUTO and case.net in SLOW_NETS else None
        dense = [run.sent[-1] for run in contest.runs[DDP]]
        rows.append(ratio_row("fewer_bytes", params, dense, sent, DDP, target=target, by_value=True))
    if name in (LOCAL_AUTO, BOTH_AUTO):
        shares = [sum(run.exposed or []) / run.ends[-1] for run in runs]
        target = MOST_EXPOSED if case.net in EXPOSED_NETS else None
        rows.append(make_row("exposed", params, estimate(shares), "share", "lower", target=target, by_value=True))
    return [*rows, curve_row(contest, params, runs)]


def curve_row(contest: Contest, params: Mapping[str, Any], runs: Sequence[Run]) -> Row:
    """Returns the loss curve as one row, for plots: medians over the seeds of loss, seconds and bytes."""
    points = len(runs[0].curve)
    chosen = sorted({*range(0, points, max(1, points // CURVE_POINTS)), points - 1})
    at = [runs[0].curve[i][0] for i in chosen]
    sent = [round(median([run.sent_at(step) for run in runs])) for step in at]
    curve = {
        "losses": [round(median([run.curve[i][1] for run in runs]), 4) for i in chosen],
        "seconds": [round(median([run.seconds_at(step) for run in runs]), 4) for step in at],
        "sent": None if contest.case.net == LOOPBACK else sent,
        "goal": round(median(contest.targets()), 4),
    }
    return make_row(CURVE, {**params, **curve}, exactly(curve["losses"][-1]), "nats", "lower")


def accuracy_row(contest: Contest, params: Mapping[str, Any]) -> Row:
    """Returns the row of the accuracy that both `auto` gain over DDP, seed by seed."""
    dense = [run.quality for run in contest.runs[DDP]]
    gained = [run.quality - other for run, other in zip(contest.runs[BOTH_AUTO], dense, strict=True)]
    target = 0.0 if contest.case.training.task in AS_ACCURATE else None
    one = (DDP, mean_estimate(dense).value)
    figure = mean_estimate(gained)
    return make_row("accuracy_gained", params, figure, "share", "higher", baseline=one, target=target, by_value=True)


def against_rows(contest: Contest, times: Mapping[str, list[float]]) -> list[Row]:
    """Rows of the speed-up of `both_auto`: 0 where it misses the target loss with a seed.

    The bound is a training with as many steps as the baseline that sends nothing. A speed-up over PowerSGD or DiLoCo
    has no value where these miss the loss. If every seed of theirs misses it, their speed relative to `both_auto` is 0.
    """
    params = {**contest.case.params, "method": BOTH_AUTO}
    most = {name: median(times[name]) / contest.without_sending(name) for name in times if name != ALONE}
    rivals: dict[str, tuple[str, float | None]] = {DDP: (DDP, None)}
    asked = OVER_DDP.get(contest.case.net)
    if asked is not None and most[DDP] >= asked:
        rivals[DDP] = (DDP, asked)
    rows = []
    for label, (names, wanted) in OVER_BEST_OF.items():
        best = _fastest(times, names)
        if best is not None:
            rivals[label] = (best, wanted if most[best] >= EXPOSED else NEVER_WORSE)
        elif _always_miss(contest, names):
            least = wanted if _least_exposed(contest, names) >= EXPOSED else NEVER_WORSE
            target = 1 / least if BOTH_AUTO in times else None
            rows.append(make_row(f"{label}_speed_over_both", params, exactly(0.0), "ratio", "lower", target=target))
    best = _fastest(times, SINGLE)
    if best is not None:
        rivals["single"] = (best, OVER_SINGLE)
    best = _fastest(times, [name for name in times if name not in (ALONE, BOTH_AUTO)])
    if best is not None:
        rivals["best"] = (best, NEVER_WORSE)
    for label, (name, target) in rivals.items():
        metric, bound = f"speedup_over_{label}", most[name]
        if BOTH_AUTO not in times:
            nothing = exactly(0.0)
            one = (name, 1.0)
            rows.append(make_row(metric, params, nothing, "ratio", "higher", baseline=one, bound=bound, target=target))
        else:
            pair = (times[name], times[BOTH_AUTO])
            rows.append(ratio_row(metric, params, *pair, name, bound=bound, target=target, by_value=True))
    return rows


def _always_miss(contest: Contest, names: Sequence[str]) -> bool:
    """Returns True if some of the methods were trained, and each of their seeds misses the target."""
    steps = [contest.steps(name) for name in names if name in contest.runs]
    return bool(steps) and all(step is None for of_seeds in steps for step in of_seeds)


def _least_exposed(contest: Contest, names: Sequence[str]) -> float:
    """Returns the seconds of the fastest of the methods over those of as many steps without communication."""
    ratios = []
    for name in names:
        pairs = zip(contest.runs.get(name, ()), contest.runs[ALONE], strict=False)
        whole = [(run.seconds_at(run.steps), alone.seconds_at(run.steps)) for run, alone in pairs]
        if whole:
            ratios.append(median([mine for mine, _ in whole]) / median([bound for _, bound in whole]))
    return min(ratios)


def _fastest(times: Mapping[str, list[float]], names: Sequence[str]) -> str | None:
    """Returns the fastest of the methods that reach the target."""
    return min((name for name in names if name in times), key=lambda name: median(times[name]), default=None)
