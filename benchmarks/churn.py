"""Elastic training under faults: ranks are killed and stopped by one schedule, the same for all systems.

    python -m benchmarks.churn [--quick] [--parts kill,stop,hour,join] [--systems sirtaki,torchft_hooks] [--resume]

Four ranks of one host train a small net, at a step of 100 ms of which most is a wait, and write each commit down. The
part `kill` sends SIGKILL to ranks by lot, `stop` SIGSTOP; lost ranks come back. `plain` kills ranks of loops without
elastic.run, to which none come back; `gate` compares steps without faults. `hour` has 20 minutes of 60 faults an hour,
and the final loss of the same trainings without. In `join` new ranks get a state of 100 MB. In `crowd` eight ranks are
for half an hour beside as many processes that are never idle.

Systems: `sirtaki` is elastic.run with a commit in each step, `sirtaki_spare` the same with a spare. `torchft_ddp` is
torchft 0.2.0 with its wrapper of models, `torchft_hooks` with an all-reduce for each gradient, `..._1s` with a
heartbeat timeout of 1 s in place of 5 s; they need an environment of their own.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common.rig import LOOPBACK, Options, finish, parse, run, say, turn_order
from benchmarks.faults import long_runs, plots
from benchmarks.faults.figures import (
    KEPT_AT_60,
    KEPT_WITH_SPARE,
    PLOTTED,
    crowd_rows,
    figures_of,
    gate_rows,
    join_rows,
    plotted_rows,
    storm_rows,
)
from benchmarks.faults.jobs import Job, SirtakiJob, TorchftJob, torchft_python, train
from benchmarks.faults.records import KILL, STOP
from benchmarks.faults.schedule import Event, evenly, poisson, told
from benchmarks.faults.storm import rage
from benchmarks.results import Row, Store

OURS, SPARE, PLAIN = "sirtaki", "sirtaki_spare", "plain"
#: Heartbeat timeout of the lighthouse in milliseconds, and wrapper.
TORCHFT = {
    "torchft_hooks": (5000, "hooks"),
    "torchft_ddp": (5000, "ddp"),
    "torchft_hooks_1s": (1000, "hooks"),
    "torchft_ddp_1s": (1000, "ddp"),
}
CALM, GATE = "calm", "gate"
HOUR, JOIN, CROWD = "hour", "join", "crowd"
PARTS = (KILL, STOP, HOUR, JOIN, CROWD, PLAIN, GATE)
RANKS, LEAST, STEP, SEED = 4, 2, 0.1, 7
DATASET, BATCH = 4000, 8
#: 0.9 million parameters, 3.5 MB; for steps of 20 ms, which four ranks on two cores must be able to keep, 0.3 MB.
WIDTH, GATE_WIDTH = 896, 256
#: Faults and seconds of a storm, and seconds without faults.
KILLS, KILL_SECONDS, STOPS, STOP_SECONDS, CALM_SECONDS = 30, 480.0, 6, 120.0, 60.0
QUICK_KILLS, QUICK_KILL_SECONDS, QUICK_STOPS, QUICK_STOP_SECONDS, QUICK_CALM_SECONDS = 2, 8.0, 1, 8.0, 3.0
#: MB of state that ranks who join need, steps between commits of it, losses, and seconds between them.
JOIN_STATE, JOIN_COMMIT_EVERY, JOINS, JOIN_SECONDS, QUICK_JOIN_SECONDS = 100, 10, 5, 20.0, 12.0
#: Jobs of the part `plain`, each of which loses ranks down to one, and seconds between losses.
PLAIN_JOBS, PLAIN_SECONDS, QUICK_PLAIN_SECONDS = 4, 4.0, 1.5
#: Launches of each way of the part `gate`; steps by pace, after some that do not count.
ROUNDS, GATE_STEPS, QUICK_STEPS, WARM_STEPS = 4, {0.02: 250, 0.1: 60}, {0.02: 60}, 30
GATE_WAYS = {"off": ("plain", ""), "gate": ("plain", "2:"), "run": ("run", "2:4")}


def recipe_of(loop: str, step: float = STEP, steps: int = 0, width: int = WIDTH) -> dict[str, Any]:
    """Returns what ranks are told; `steps` 0: until the job is ended."""
    known = {"loop": loop, "pace": step, "steps": steps, "width": width, "least": LEAST}
    return {**known, "dataset": DATASET, "batch": BATCH, "digest": width == WIDTH}


def starter(system: str) -> Callable[[Path], Job]:
    """Returns what starts a job of a system in a folder."""
    if system in (OURS, SPARE):
        spares = 1 if system == SPARE else 0
        return lambda folder: SirtakiJob(folder, RANKS, recipe_of("run"), f"{LEAST}:{RANKS}", spares=spares)
    if system == PLAIN:
        return lambda folder: SirtakiJob(folder, RANKS, recipe_of("plain"), "1:")
    timeout, wrapper = TORCHFT[system]
    python = torchft_python()
    assert python is not None
    return lambda folder: TorchftJob(folder, RANKS, {**recipe_of("run"), "wrapper": wrapper}, python, timeout)


def events_of(part: str, quick: bool) -> tuple[list[Event], float]:
    """Returns the faults of a part, and its seconds."""
    if part == CALM:
        return [], QUICK_CALM_SECONDS if quick else CALM_SECONDS
    if part == KILL:
        count, seconds = (QUICK_KILLS, QUICK_KILL_SECONDS) if quick else (KILLS, KILL_SECONDS)
        return poisson(count, seconds * 0.9 if not quick else seconds / 2, [KILL], SEED), seconds
    count, seconds = (QUICK_STOPS, QUICK_STOP_SECONDS) if quick else (STOPS, STOP_SECONDS)
    return evenly(count, seconds, STOP, SEED), seconds


def measure_storm(store: Store, system: str, part: str, quick: bool) -> dict[str, Any]:
    """Returns the figures of a system in a part, measured unless the store has them."""
    key = f"{system}/{part}"
    if store.samples(key) is None:
        events, seconds = events_of(part, quick)
        say(f"{key}: {seconds:.0f} s; {told(events) or 'no faults'}")
        storm = rage(starter(system), RANKS, LEAST, seconds, events)
        store.keep(key, figures_of(storm, DATASET if system in (OURS, SPARE) else 0))
    found: dict[str, Any] = store.samples(key)
    return found


def measure_plain(store: Store, quick: bool) -> dict[str, Any]:
    """Returns the figures of loops without elastic.run, which lose ranks down to one."""
    key = f"{OURS}/{PLAIN}"
    if store.samples(key) is None:
        storms: list[dict[str, Any]] = []
        pause = QUICK_PLAIN_SECONDS if quick else PLAIN_SECONDS
        for number in range(1 if quick else PLAIN_JOBS):
            events = evenly(RANKS - 1, pause * (RANKS - 1), KILL, SEED + number)
            say(f"{key}: job {number}; {told(events)}")
            storms.append(figures_of(rage(starter(PLAIN), RANKS, 1, pause * RANKS, events), 0))
        store.keep(key, {name: _joined([storm[name] for storm in storms]) for name in storms[0]})
    found: dict[str, Any] = store.samples(key)
    return found


def measure_join(store: Store, quick: bool) -> dict[str, Any]:
    """Returns the figures of a training with a large state, whose ranks are killed and come back."""
    if store.samples(JOIN) is None:
        count, pause = (1, QUICK_JOIN_SECONDS) if quick else (JOINS, JOIN_SECONDS)
        events = evenly(count, count * pause, KILL, SEED)
        say(f"{JOIN}: {JOIN_STATE} MB of state; {told(events)}")
        recipe = {**recipe_of("run"), "ballast": JOIN_STATE, "commit_every": JOIN_COMMIT_EVERY}

        def start(folder: Path) -> Job:
            return SirtakiJob(folder, RANKS, recipe, f"{LEAST}:{RANKS}")

        store.keep(JOIN, figures_of(rage(start, RANKS, LEAST, count * pause, events), DATASET))
    return dict(store.samples(JOIN))


def _joined(values: Sequence[Any]) -> Any:
    if values[0] is None or isinstance(values[0], str):
        return values[0] and "".join(values)
    return sum(values[1:], values[0])


def measure_gate(store: Store, step: float, steps: int, rounds: int) -> dict[str, list[float]]:
    """Returns the median work of a step by way, one a launch."""
    key = f"{OURS}/{GATE}/{step:g}"
    if store.samples(key) is None:
        work: dict[str, list[float]] = {way: [] for way in GATE_WAYS}
        for turn in range(rounds):
            for way in turn_order(list(GATE_WAYS), turn):
                work[way].append(_work(way, step, steps))
                say(f"{key}: {way}: {work[way][-1] * 1e3:.2f} ms of a step")
        store.keep(key, work)
    found: dict[str, list[float]] = store.samples(key)
    return found


def _work(way: str, step: float, steps: int) -> float:
    loop, elastic = GATE_WAYS[way]
    lines = train(RANKS, recipe_of(loop, step, steps + WARM_STEPS, GATE_WIDTH), elastic, 300)
    by_step: dict[int, list[float]] = {}
    for line in lines:
        by_step.setdefault(line.step, []).append(line.busy)
    return statistics.median(statistics.fmean(busy) for at, busy in by_step.items() if at > WARM_STEPS)


def rows_of(options: Options, store: Store) -> list[Row]:
    """Measures what the command line selects; returns the rows."""
    parts = options.more["parts"]
    rows: list[Row] = []
    fixed = {"ranks": RANKS, "step_seconds": STEP}
    for system in options.systems:
        storms = [part for part in parts if part in (KILL, STOP)]
        calm = measure_storm(store, system, CALM, options.quick) if storms else {}
        for part in storms:
            params = {"system": system, "faults": part, **fixed}
            found = measure_storm(store, system, part, options.quick)
            kept = KEPT_WITH_SPARE if system == SPARE else KEPT_AT_60
            rows += storm_rows(params, found, calm, judged=system in (OURS, SPARE), kept_at_60=kept)
            rows += plotted_rows(params, found, calm)
    base = recipe_of("run")
    if OURS in options.systems and HOUR in parts:
        found = long_runs.measure_hour(store, base, RANKS, quick=options.quick)
        rows += long_runs.hour_rows(found, fixed, RANKS * BATCH / STEP)
    if OURS in options.systems and JOIN in parts:
        params = {"system": OURS, "faults": JOIN, **fixed, "state_mb": JOIN_STATE}
        rows += join_rows(params, measure_join(store, options.quick))
    if OURS in options.systems and CROWD in parts:
        params = {"system": OURS, "faults": CROWD, "ranks": long_runs.CROWD_RANKS, "step_seconds": STEP}
        rows += crowd_rows(params, long_runs.measure_crowd(store, base, quick=options.quick))
    if OURS in options.systems and PLAIN in parts:
        found = measure_plain(store, options.quick)
        params = {"system": "sirtaki_plain", "faults": KILL, **fixed}
        rows += [row for row in storm_rows(params, found, found, judged=True) if not row.metric.startswith("samples")]
    if OURS in options.systems and GATE in parts:
        for step, steps in (QUICK_STEPS if options.quick else GATE_STEPS).items():
            work = measure_gate(store, step, steps, 1 if options.quick else ROUNDS)
            rows += gate_rows({"system": OURS, "ranks": RANKS, "step_seconds": step}, work)
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    systems = (OURS, SPARE, *TORCHFT)
    options, store = parse("churn", __doc__ or "", (LOOPBACK,), (RANKS,), systems, parts=PARTS)
    if torchft_python() is None and any(system in TORCHFT for system in options.systems):
        say("torchft is left out: benchmarks/README.md says how to make an environment for it")
        options = replace(options, systems=tuple(name for name in options.systems if name not in TORCHFT))
    return finish(store, rows_of(options, store), plots.churn, PLOTTED)


if __name__ == "__main__":
    sys.exit(run(main))
