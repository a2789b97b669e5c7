"""Programs that people have, with the one line of Sirtaki and without it, from their first step on.

    python -m benchmarks.doors [--quick] [--doors ddp,lightning,huggingface,fsdp] [--nets 100,20]
        [--tasks cnn,perceptron] [--seeds 1,2,3,4,5] [--resume]

Doors: DistributedDataParallel, the examples for Lightning and the Trainer of Transformers, and FSDP2 with two ranks a
host, all over Gloo, with a small net on Fashion-MNIST (by default `cnn`). `plain` is the program without the line: for
FSDP its own dense average over hosts (HSDP). `sirtaki` has the line of the documentation with its defaults,
`sirtaki_local` local updates, too. `alone` averages nothing, under FSDP nothing between hosts: the bound.

Trainings of a seed run one after the other, in an order that alternates, each in processes of its own.

For `ddp`, steps of accelerate(), of DistributedOptimizer with the same settings, of DDP and of `alone` are also timed
block by block in turns, in the same processes. `idle_hook` is DDP with a communication hook that sends nothing: the
bound of every hook. All that with default buckets, which accelerate() makes small, and with those of 25 MB; by ranks
that share the cores, and by two with a core each, whose compute is a wait (benchmarks/training/replayed.py).

The libraries come from `scripts/setup.sh compat`; what is missing is left out, and the run says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

from benchmarks.adapters import measuring
from benchmarks.adapters.cases import (
    ALONE,
    DDP,
    DOORS,
    FSDP,
    LIBRARIES,
    SETTINGS,
    SHARDS,
    TASKS,
    DoorCase,
    Setting,
    ways,
)
from benchmarks.adapters.figures import Training, accelerated_rows, door_rows
from benchmarks.common.rig import LOOPBACK, Options, finish, network, parse, run, say, turn_order
from benchmarks.results import Row, Store

NETS, RANKS = ("100", "20", LOOPBACK), (4,)
SEEDS = ("1", "2", "3", "4", "5")
STEPS, QUICK_STEPS = 150, 8


def case_of(net: str, size: int, door: str, task: str = TASKS[0]) -> DoorCase:
    """Returns the case of a door; under FSDP, hosts have as many ranks as share a model."""
    return DoorCase(net if net == LOOPBACK or door != FSDP else f"{net}x{SHARDS}", size, door, task)


def training_key(case: DoorCase, name: str, seed: int) -> str:
    """Key of a training in the partial file."""
    return f"{case.key}/{name}/{seed}"


def settings_key(case: DoorCase, setting: Setting) -> str:
    """Key of the steps in turns in the partial file."""
    return f"{case.key}/turns/{setting.key}"


def names_of(case: DoorCase, steps: int, seed: int, first: int) -> list[str]:
    """Returns the ways to train with a seed, in their order. The bound is measured once, with the first seed."""
    compared = [name for name in ways(case.door, steps) if name != ALONE]
    return [*turn_order(compared, seed), *([ALONE] if seed == first else [])]


def measure(options: Options, store: Store, case: DoorCase, seeds: Sequence[int], steps: int) -> None:
    """Measures what the store does not hold of a case."""
    plan = [(seed, name) for seed in seeds for name in names_of(case, steps, seed, seeds[0])]
    trainings = [(seed, name) for seed, name in plan if store.samples(training_key(case, name, seed)) is None]
    settings = [one for one in settings_of(options, case) if store.samples(settings_key(case, one)) is None]
    if not trainings and not settings:
        return
    for setting in settings:
        say(f"{case.key}: steps in turns, {setting}")
        found = measuring.time_accelerated(options, case, setting)
        store.keep(settings_key(case, setting), found)
    if not trainings:
        return
    with network(case.net, case.size, strict=not options.quick) as net:
        for seed, name in trainings:
            found = measuring.train(case, net, name, seed, steps)
            store.keep(training_key(case, name, seed), found)
            loss, seconds = found["curve"][-1][1], found["ends"][-1]
            say(f"{case.key}: {name}, seed {seed}: loss {loss:.4f} after {seconds:.2f} s")


def settings_of(options: Options, case: DoorCase) -> tuple[Setting, ...]:
    """Returns the settings with which steps are timed in turns; a quick run has one of them."""
    return () if case.door != DDP else SETTINGS[:1] if options.quick else SETTINGS


def rows_of(options: Options, store: Store, case: DoorCase, seeds: Sequence[int], steps: int) -> list[Row]:
    """Rows of a case."""
    rows: list[Row] = []
    for setting in settings_of(options, case):
        rows += accelerated_rows(case, setting, store.samples(settings_key(case, setting)))
    trainings = {
        name: [
            Training(**store.samples(training_key(case, name, seed)))
            for seed in (seeds[:1] if name == ALONE else seeds)
        ]
        for name in ways(case.door, steps)
    }
    return rows + door_rows(case, trainings)


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    more = {"doors": DOORS, "tasks": TASKS, "seeds": SEEDS}
    defaults = {"nets": NETS[0], "tasks": TASKS[0]}
    options, store = parse("doors", __doc__ or "", NETS, RANKS, (), defaults=defaults, **more)
    steps = QUICK_STEPS if options.quick else STEPS
    seeds = [int(seed) for seed in options.more["seeds"]][: 1 if options.quick else None]
    rows: list[Row] = []
    for door in options.more["doors"]:
        if measuring.library_python(door) is None:
            say(f"{LIBRARIES[door][0]} is left out: scripts/setup.sh compat installs it")
            continue
        for net, size, task in product(options.nets, options.ranks, options.more["tasks"]):
            case = case_of(net, size, door, task)
            measure(options, store, case, seeds, steps)
            rows += rows_of(options, store, case, seeds, steps)
    return finish(store, rows)


if __name__ == "__main__":
    sys.exit(run(main))
