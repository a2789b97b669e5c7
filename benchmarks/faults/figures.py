"""Rows of `churn`, from figures of a storm, and those figures from its lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults import analysis
from benchmarks.faults.records import CUT, KILL, STOP
from benchmarks.faults.storm import Storm
from benchmarks.results import Row, make_row
from benchmarks.statistics import Estimate, estimate, exactly, mean_estimate, quantile

#: Seconds from a fault to the next commit: median and worst, without the step itself. A stopped rank is noticed after
#: elastic.silence, 3 s.
RECOVERY = {KILL: (0.3, 1.0), STOP: (3.3, 4.9)}
#: Longest pause of the others when a rank joins, without the step itself.
JOIN_PAUSE = 0.1
#: The same with a state of 100 MB that is sent while the others wait.
LARGE_JOIN_PAUSE = 0.4
#: Share of the samples of a training without faults, at 60 faults an hour; with a spare.
KEPT_AT_60, KEPT_WITH_SPARE = 0.95, 0.97
#: Storms of 60 faults an hour: of SIGKILL alone, and of all kinds. Share of the samples that the latter keeps.
HOUR_KILL, HOUR_MIXED = "kill_60_an_hour", "mixed_60_an_hour"
KEPT_MIXED = 0.92
MIXED_KINDS = (KILL, KILL, STOP, KILL, CUT)
#: Loss of a training with faults over that of the same one without, and the evaluations at the end that count.
LOSS_OVER_CALM, LAST_LOSSES = 1.01, 10
#: Share of a step that the gate may cost.
GATE_SHARE = 0.01
#: Seconds between points of the plot.
POINT_SECONDS = 5.0
PLOTTED = ("samples_at", "fault_at")


def figures_of(storm: Storm, dataset: int) -> dict[str, Any]:
    """Returns the figures of a storm, for rows and the partial file. `dataset`: 0 where no sampler deals samples."""
    found = analysis.recoveries(storm.lines, storm.faults)
    samples = [(time - storm.begin, count) for time, count in analysis.committed_samples(storm.lines)]
    lost, doubled = analysis.spoiled_samples(storm.lines, dataset) if dataset else (None, None)
    return {
        "seconds": storm.end - storm.begin,
        "recovery": [one.seconds for one in found if one is not None],
        "lost_steps": [one.redone + one.void for one in found if one is not None],
        "redone": sum(one.redone for one in found if one is not None),
        "unrecovered": sum(one is None for one in found),
        "join_gaps": analysis.join_gaps(storm.lines, storm.faults),
        "returns": analysis.returns(storm.lines, storm.faults),
        "faults": [[fault.time - storm.begin, fault.kind, fault.slot] for fault in storm.faults],
        "samples": sum(count for time, count in samples if time > 0),
        "curve": _curve(samples, storm.end - storm.begin),
        "lost": lost,
        "doubled": doubled,
        "unequal": analysis.unequal_digests(storm.lines),
        "restarted": analysis.restarted_survivors(storm.lines, storm.faults, storm.end),
        "left": storm.left,
        "ended": storm.ended,
        "final_loss": analysis.final_loss(storm.lines, LAST_LOSSES),
        "epochs": len(analysis.members(storm.lines)),
    }


def _curve(samples: Sequence[tuple[float, int]], seconds: float) -> list[list[float]]:
    points, total, place = [], 0, 0
    for number in range(int(seconds / POINT_SECONDS) + 1):
        at = number * POINT_SECONDS
        while place < len(samples) and samples[place][0] <= at:
            total += samples[place][1] if samples[place][0] > 0 else 0
            place += 1
        points.append([at, float(total)])
    return points


def storm_rows(
    params: Mapping[str, Any],
    found: Mapping[str, Any],
    calm: Mapping[str, Any],
    *,
    judged: bool,
    kept_at_60: float = KEPT_AT_60,
) -> list[Row]:
    """Rows of a storm. `calm`: figures of the same training without faults; `judged`: targets apply."""
    kind, step = params["faults"], params["step_seconds"]
    middle, worst = RECOVERY[kind]
    rows: list[Row] = []

    def add(metric: str, figure: Estimate, unit: str, target: float | None = None, better: str = "lower") -> None:
        rows.append(make_row(metric, params, figure, unit, better, target=target if judged else None))

    if found["recovery"]:
        add("recovery_seconds", estimate(found["recovery"]), "s", middle + step)
        add("recovery_seconds_p99", _at(found["recovery"], 0.99), "s", worst + step)
        add("lost_steps_most", _at(found["lost_steps"], 1.0), "steps", 1)
        add("commits_redone", exactly(found["redone"]), "steps")
    if found["join_gaps"]:
        add("join_gap_seconds", _at(found["join_gaps"], 1.0), "s", JOIN_PAUSE + step)
    if found["returns"]:
        add("return_seconds", estimate(found["returns"]), "s")
    rows += count_rows(params, found, judged=judged)
    add("samples_kept", exactly(kept_share(found, calm)), "share", None, "higher")
    target = kept_at_60 if kind == KILL else None
    add("samples_kept_at_60_an_hour", exactly(kept_share(found, calm, 60.0)), "share", target, "higher")
    return rows


def count_rows(params: Mapping[str, Any], found: Mapping[str, Any], *, judged: bool) -> list[Row]:
    """Rows of things that must not happen. `judged`: the target, none of them, applies."""
    target = 0 if judged else None
    counts = [
        ("faults_without_recovery", "unrecovered"),
        ("survivors_restarted", "restarted"),
        ("digests_unequal", "unequal"),
        ("samples_lost", "lost"),
        ("samples_doubled", "doubled"),
        ("processes_left", "left"),
    ]
    figures = {metric: found[key] for metric, key in counts if found[key] is not None}
    figures["job_ended"] = float(bool(found["ended"]))
    return [make_row(metric, params, exactly(value), "", "lower", target=target) for metric, value in figures.items()]


def hour_rows(params: Mapping[str, Any], found: Mapping[str, Any], calm: Mapping[str, Any], kept: float) -> list[Row]:
    """Rows of a storm at a rate of faults that a user may have. `kept`: the least share of samples.

    Its pauses are not judged, because several jobs share the processors.
    """
    share = exactly(kept_share(found, calm))
    rows = [make_row("samples_kept", params, share, "share", "higher", target=kept)]
    loss = exactly(found["final_loss"] / found["calm_loss"])
    rows.append(make_row("loss_over_calm", params, loss, "", "lower", target=LOSS_OVER_CALM))
    for metric, key in (("recovery_seconds", "recovery"), ("return_seconds", "returns")):
        if found[key]:
            rows.append(make_row(metric, params, estimate(found[key]), "s", "lower"))
    if found["lost_steps"]:
        rows.append(make_row("lost_steps_most", params, _at(found["lost_steps"], 1.0), "steps", "lower", target=1))
    return rows + count_rows(params, found, judged=True)


def join_rows(params: Mapping[str, Any], found: Mapping[str, Any]) -> list[Row]:
    """Rows of a training with a large state: how long the others wait for losses and for new ranks."""
    step = params["step_seconds"]
    rows = [make_row("recovery_seconds", params, estimate(found["recovery"]), "s", "lower")]
    if found["join_gaps"]:
        target = LARGE_JOIN_PAUSE + step
        rows.append(make_row("join_gap_seconds", params, _at(found["join_gaps"], 1.0), "s", "lower", target=target))
    return rows + count_rows(params, found, judged=True)


def crowd_rows(params: Mapping[str, Any], found: Mapping[str, Any]) -> list[Row]:
    """Rows of a training without faults, beside processes that are never idle."""
    evicted = exactly(float(found["epochs"] - 1))
    rows = [make_row("evictions", params, evicted, "", "lower", target=0)]
    rows.append(make_row("samples_per_second", params, exactly(found["samples"] / found["seconds"]), "1/s", "higher"))
    return rows + count_rows(params, found, judged=True)


def _at(values: Sequence[float], share: float) -> Estimate:
    value = quantile(values, share)
    return Estimate(value, value, value, value, value, len(values))


def kept_share(found: Mapping[str, Any], calm: Mapping[str, Any], an_hour: float | None = None) -> float:
    """Returns the samples of a storm over those of as much time without faults, by default at its own rate of faults.

    At another rate a fault costs as many samples as it does here on average.
    """
    share = found["samples"] / found["seconds"] / (calm["samples"] / calm["seconds"])
    if an_hour is None or not found["faults"]:
        return float(share)
    return 1.0 - (1.0 - float(share)) * an_hour / (3600.0 * len(found["faults"]) / found["seconds"])


def plotted_rows(params: Mapping[str, Any], found: Mapping[str, Any], calm: Mapping[str, Any]) -> list[Row]:
    """Rows of the plot alone: committed samples by time, with those without faults as bound, and the faults."""
    rate = calm["samples"] / calm["seconds"]
    rows = [
        make_row("samples_at", {**params, "second": at}, exactly(count), "samples", "higher", bound=rate * at)
        for at, count in found["curve"]
    ]
    for at, kind, slot in found["faults"]:
        rows.append(make_row("fault_at", {**params, "kind": kind, "slot": slot}, exactly(at), "s", "lower"))
    return rows


def gate_rows(params: Mapping[str, Any], work: Mapping[str, Sequence[float]]) -> list[Row]:
    """Rows of steps without faults. `work`: by way, the median seconds of a step without the pace, one a launch."""
    rows = [make_row("step_work_seconds", {**params, "way": way}, estimate(work[way]), "s", "lower") for way in work]
    for way in [way for way in work if way != "off"]:
        shares = [(on - off) / params["step_seconds"] for on, off in zip(work[way], work["off"], strict=True)]
        target = GATE_SHARE if way == "gate" else None
        named = {**params, "way": way}
        rows.append(make_row("elastic_share", named, mean_estimate(shares), "share", "lower", target=target))
    return rows
