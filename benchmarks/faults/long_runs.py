"""Parts of `churn` that last: storms of 60 faults an hour, and a crowded machine.

Owned by: the main process of the benchmark. Three storms run side by side, because their steps leave the processors
idle most of the time; more would slow the start of new ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import netns
from benchmarks.common.rig import say
from benchmarks.faults import analysis, figures
from benchmarks.faults.jobs import CrowdedJob, SirtakiJob, train
from benchmarks.faults.records import KILL
from benchmarks.faults.schedule import Event, poisson, told
from benchmarks.faults.storm import Storm, rage, rage_together
from benchmarks.results import Row, Store

HOUR_SECONDS, HOUR_FAULTS, CROWD_SECONDS = 1200.0, 20, 1800.0
QUICK_SECONDS, QUICK_FAULTS, QUICK_CROWD_SECONDS = 12.0, 1, 5.0
CROWD_RANKS, SPINNING, CROWD_SEED = 8, 8, 7
#: 0.3 MB of parameters; samples of an epoch, twenty of which make the training; steps between evaluations.
WIDTH, DATASET, EVALUATE = 256, 20000, 100
#: Seconds that a training without a pace may take.
CALM_SECONDS = 1200.0


@dataclass(frozen=True)
class _Kind:
    """A storm: its system, faults, kinds of faults in turns, seed, spares, and the least share of samples."""

    system: str
    faults: str
    kinds: tuple[str, ...]
    seed: int
    spares: int
    kept: float


_STORMS = {
    "kill": _Kind("sirtaki", figures.HOUR_KILL, (KILL,), 7, 0, figures.KEPT_AT_60),
    "spare": _Kind("sirtaki_spare", figures.HOUR_KILL, (KILL,), 8, 1, figures.KEPT_WITH_SPARE),
    "mixed": _Kind("sirtaki", figures.HOUR_MIXED, figures.MIXED_KINDS, 9, 0, figures.KEPT_MIXED),
}


def _recipe(base: dict[str, Any], seed: int) -> dict[str, Any]:
    return {**base, "width": WIDTH, "dataset": DATASET, "digest": True, "evaluate": EVALUATE, "seed": seed}


def measure_hour(store: Store, base: dict[str, Any], ranks: int, *, quick: bool) -> dict[str, Any]:
    """Returns the figures of all storms by name, each with the final loss of the training without faults."""
    seconds, count = (QUICK_SECONDS, QUICK_FAULTS) if quick else (HOUR_SECONDS, HOUR_FAULTS)
    for name, kind in _STORMS.items():
        key = f"hour/calm/{name}"
        if store.samples(key) is None:
            store.keep(key, _calm_loss(_recipe(base, kind.seed), ranks, round(seconds / base["pace"])))
            say(f"{key}: loss {store.samples(key):.4f} without faults")
    if store.samples("hour") is None:
        with netns.Net(1) as net:

            def storm(kind: _Kind) -> Callable[[Callable[[], bool]], Storm]:
                events = poisson(count, 0.95 * seconds, kind.kinds, kind.seed)
                say(f"hour, {kind.system}: {seconds:.0f} s; {told(events)}")
                start = _starter(_recipe(base, kind.seed), ranks, kind.spares, net)
                return lambda called_off: rage(start, ranks, base["least"], seconds, events, called_off=called_off)

            storms = rage_together({name: storm(kind) for name, kind in _STORMS.items()})
        store.keep("hour", {name: figures.figures_of(storms[name], DATASET) for name in storms})
    found = dict(store.samples("hour"))
    return {name: {**found[name], "calm_loss": store.samples(f"hour/calm/{name}")} for name in found}


def _calm_loss(recipe: dict[str, Any], ranks: int, steps: int) -> float:
    """Returns the final loss of a training without faults, which need not keep the pace."""
    lines = train(ranks, {**recipe, "pace": 0.0, "steps": steps}, f"{recipe['least']}:{ranks}", CALM_SECONDS)
    loss = analysis.final_loss(lines, figures.LAST_LOSSES)
    assert loss is not None
    return loss


def _starter(recipe: dict[str, Any], ranks: int, spares: int, net: netns.Net) -> Callable[[Path], SirtakiJob]:
    elastic = f"{recipe['least']}:{ranks}"
    inside = net.command(0, [])
    return lambda folder: SirtakiJob(folder, ranks, recipe, elastic, spares=spares, inside=inside)


def hour_rows(found: dict[str, Any], params: dict[str, Any], rate: float) -> list[Row]:
    """Rows of the storms and of their plot. `rate`: samples a second without faults, which the pace allows."""
    rows: list[Row] = []
    for name, kind in _STORMS.items():
        named = {"system": kind.system, "faults": kind.faults, **params}
        calm = {"samples": rate, "seconds": 1.0}
        rows += figures.hour_rows(named, found[name], calm, kind.kept) + figures.plotted_rows(named, found[name], calm)
    return rows


def measure_crowd(store: Store, base: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    """Returns the figures of eight ranks beside eight processes that are never idle."""
    key = "crowd"
    if store.samples(key) is None:
        seconds = QUICK_CROWD_SECONDS if quick else CROWD_SECONDS
        say(f"{key}: {seconds:.0f} s; {CROWD_RANKS} ranks beside {SPINNING} processes that are never idle")
        recipe, events = _recipe(base, CROWD_SEED), list[Event]()

        def start(folder: Path) -> CrowdedJob:
            job = SirtakiJob(folder, CROWD_RANKS, recipe, f"{recipe['least']}:{CROWD_RANKS}")
            return CrowdedJob(job, SPINNING)

        storm = rage(start, CROWD_RANKS, recipe["least"], seconds, events)
        store.keep(key, figures.figures_of(storm, DATASET))
    return dict(store.samples(key))
