"""The published methods and their controls: accuracy, training loss, bytes and step time on Fashion-MNIST.

    python -m benchmarks.methods [--quick] [--nets 20,100] [--methods hylo,algc] [--seeds 1,2,3,4,5] [--resume]

Every method trains the same net from the same weights on the same batches, once for each seed, unshaped: the result of
a step does not depend on the link, since methods name their reduction algorithm and densities stay. Bytes and step
times are measured on shaped links over a part of the training. If the density of a method warms up, the bytes are
averages over a whole training and the step times those after the warm-up. Each finished training is kept, so --resume
continues. Controls: `..._no_ef` drops the residual, `zero` never sends large tensors at all; a method that is no better
than its controls has no effect.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.contest import NetCase, ratio_row
from benchmarks.common.group import Group, GroupError
from benchmarks.common.rig import Contender, Options, Plan, finish, interleave, network, parse, run, say
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate, mean_estimate, point
from benchmarks.training import compression_plots
from benchmarks.training.trainings import control_rows, time_alone

DENSE = "dense"
NETS = ("20", "100")
RANKS = (4,)
SEEDS = ("1", "2", "3", "4", "5")
BATCH, LR, MOMENTUM, EPOCHS, TRAINING_IMAGES = 32, 0.05, 0.9, 2, 60_000
LAST_STEPS = 200
QUICK_STEPS, QUICK_LAST = 24, 8
#: Steps of a timed block, and number of blocks; blocks of all methods take turns.
BLOCK_STEPS, BLOCKS = 10, 12
BYTE_STEPS = 10
#: Steps of a training for each step of the warm-up of density; Deep Gradient Compression warms up for 2 to 5 % of them.
WARM_UP_PART = 20


@dataclass(frozen=True)
class Method:
    """A compression method and its targets against dense training. pp: percentage points of accuracy."""

    text: str = "none"
    kind: str = "method"  # "dense", "method" or "control"
    control_of: tuple[str, ...] = ()
    warm_up: bool = False  # of density, over the first part of a training
    zero: bool = False
    loss_pp: tuple[float, float | None] | None = None  # the mean, and the upper edge of its interval
    loss_excess: float | None = None
    fewer_bytes: float | None = None
    speedup: tuple[str, float] | None = None  # (Mbit/s, times as many steps a second)


_GROUP = "group_topk:rate=0.01,group=512,wire=gather"
_HYLO = "hylo:wire=scatter,rho=0.48,factor=0.7"
_ALGC = "algc:wire=gather,density=0.0089,most=0.0089"
METHODS = {
    DENSE: Method(kind="dense"),
    "zero": Method(kind="control", control_of=("hylo", "algc", "group_topk"), zero=True),
    "fp16": Method("fp16"),
    "hylo": Method(_HYLO, loss_pp=(0.5, 1.0), loss_excess=0.02, fewer_bytes=10.0),
    "hylo_no_ef": Method(f"{_HYLO},ef=off", "control", ("hylo",)),
    "algc": Method(_ALGC, warm_up=True, loss_pp=(0.5, 1.0), fewer_bytes=15.0, speedup=("100", 2.0)),
    "algc_no_ef": Method(f"{_ALGC},ef=off", "control", ("algc",), warm_up=True),
    "group_topk": Method(f"{_GROUP},momentum={MOMENTUM}", warm_up=True, loss_pp=(1.0, None), speedup=("20", 4.0)),
    "group_topk_plain": Method(_GROUP),
    "group_topk_no_ef": Method(f"{_GROUP},ef=off", "control", ("group_topk",)),
}


def recipe_of(method: Method, seed: int, steps: int, warm_up: int = 0) -> dict[str, Any]:
    """Recipe of the training, as benchmarks/training/learning.py reads it."""
    key = f"{',' if ':' in method.text else ':'}warmup={warm_up}" if method.warm_up and warm_up > 0 else ""
    return {
        "net": "cnn",
        "batch": BATCH,
        "seed": seed,
        "lr": LR,
        "momentum": MOMENTUM,
        "steps": steps,
        "how": {"compression": method.text + key},
        "zero": method.zero,
    }


def training_steps(size: int) -> int:
    """Steps of a whole training."""
    return EPOCHS * (TRAINING_IMAGES // (BATCH * size))


def warm_up_steps(steps: int) -> int:
    """Returns the steps in which density warms up in a training of `steps` steps."""
    return steps // WARM_UP_PART


# ---- trainings -----------------------------------------------------------------------------


def train(group: Group, name: str, seed: int, steps: int, last: int) -> dict[str, float]:
    """Trains once; returns the mean loss of the last steps over all ranks, and the accuracy of their common model."""
    recipe = recipe_of(METHODS[name], seed, steps, warm_up_steps(steps))
    group.call("learn_prepare", system="sirtaki", name=name, recipe=recipe)
    seconds = max(group.call("learn_run", timeout=1200, name=name, steps=steps))
    parts = group.call("learn_outcome", timeout=300, name=name, last=last)
    group.call("learn_drop", names=[name])
    if len({part["digest"] for part in parts}) != 1:
        raise GroupError(f"{name}, seed {seed}: the ranks have different parameters after {steps} steps")
    loss = sum(part["loss"] for part in parts) / len(parts)
    return {"loss": loss, "accuracy": sum(part["quality"] for part in parts), "seconds": seconds}


def measure_trainings(options: Options, store: Store, size: int, names: Sequence[str], seeds: Sequence[int]) -> None:
    """Trains the methods that the store does not hold yet, seed by seed, so that an interrupted run has whole pairs."""
    steps, last = (QUICK_STEPS, QUICK_LAST) if options.quick else (training_steps(size), LAST_STEPS)
    missing = [(s, n) for s in seeds for n in names if store.samples(train_key(size, n, s)) is None]
    if not missing:
        return
    with Group(size, ["sirtaki"]) as group:
        for seed, name in missing:
            found = train(group, name, seed, steps, last)
            store.keep(train_key(size, name, seed), found)
            say(f"{name}, seed {seed}: loss {found['loss']:.4f}, accuracy {found['accuracy']:.4f}")


def train_key(size: int, name: str, seed: int) -> str:
    """Key of a training in the partial file."""
    return f"train/{size}/{name}/{seed}"


# ---- step times ----------------------------------------------------------------------------


def measure_steps(options: Options, net: Net | None, case: NetCase, names: Sequence[str]) -> dict[str, Any]:
    """Measures the seconds of a step of every method, block by block in turns, and the bytes that a step sends."""
    blocks = 2 if options.quick else BLOCKS
    steps = 3 if options.quick else BLOCK_STEPS
    with Group(case.size, ["sirtaki"], net=net) as group:
        for name in names:
            recipe = recipe_of(METHODS[name], 1, training_steps(case.size))
            group.call("learn_prepare", system="sirtaki", name=name, recipe=recipe)
        # Ranks agree on a plan in the first steps; streams plan again after some more.
        group.call("learn_blocks", timeout=900, blocks=[[name, 4 if options.quick else 14] for name in names])
        plan = Plan(pairs=blocks, min_pairs=blocks, block_seconds=0.0, block_iterations=steps)
        samples = interleave([Contender(name, group) for name in names], "learn_blocks", plan)
        sent = {name: _sent(group, net, name, 2 if options.quick else BYTE_STEPS) for name in names}
        if not options.quick:
            sent.update({name: _with_warm_up(group, net, name, sent[name]) for name in names if METHODS[name].warm_up})
    return {"seconds": samples, "bytes": sent}


def measure_alone(options: Options, size: int) -> list[float]:
    """Measures the seconds of a step that sends nothing."""
    blocks, steps = (2, 3) if options.quick else (BLOCKS, BLOCK_STEPS)
    return time_alone(size, recipe_of(METHODS[DENSE], 1, training_steps(size)), blocks=blocks, steps=steps)


def _with_warm_up(group: Group, net: Net | None, name: str, steady: float) -> float:
    """Measures the mean bytes of a step over a training that begins with a warm-up."""
    steps = training_steps(group.size)
    warm = warm_up_steps(steps)
    group.call("learn_prepare", system="sirtaki", name=f"{name}.warm", recipe=recipe_of(METHODS[name], 1, steps, warm))
    first = _sent(group, net, f"{name}.warm", warm)
    group.call("learn_drop", names=[f"{name}.warm"])
    return steady + (first - steady) * warm / steps


def _sent(group: Group, net: Net | None, name: str, steps: int) -> float:
    # learn_blocks makes one step more than the steps that count.
    assert net is not None
    before = net.bytes()
    group.call("learn_blocks", timeout=600, blocks=[[name, steps - 1]])
    return max(a.sent - b.sent for a, b in zip(net.bytes(), before, strict=True)) / steps


# ---- rows ----------------------------------------------------------------------------------


def training_rows(size: int, name: str, found: dict[str, list[dict[str, float]]]) -> list[Row]:
    """Rows of accuracy and loss over the seeds, and of the differences seed by seed.

    Differences are those from dense training and, for a control, from the methods that it controls.
    """
    method = METHODS[name]
    params = {"method": name, "kind": method.kind, "ranks": size}
    losses = [run["loss"] for run in found[name]]
    rows = [
        make_row("accuracy", params, mean_estimate([run["accuracy"] for run in found[name]]), "share", "higher"),
        make_row("loss", params, mean_estimate(losses), "nats", "lower"),
    ]
    if DENSE in found and name != DENSE:
        worse = mean_estimate(
            [100 * (dense["accuracy"] - run["accuracy"]) for dense, run in zip(found[DENSE], found[name], strict=True)]
        )
        excess = mean_estimate([loss - dense["loss"] for loss, dense in zip(losses, found[DENSE], strict=True)])
        mean, edge = method.loss_pp or (None, None)
        rows.append(make_row("accuracy_lost", params, worse, "pp", "lower", target=mean, by_value=True))
        rows.append(make_row("accuracy_lost_upper_edge", params, point(worse, worse.high), "pp", "lower", target=edge))
        rows.append(make_row("loss_excess", params, excess, "nats", "lower", target=method.loss_excess))
    for other in method.control_of:
        if other in found:
            rows += control_rows(params, losses, other, [run["loss"] for run in found[other]])
    return rows


def step_rows(case: NetCase, found: dict[str, Any]) -> list[Row]:
    """Rows of step time and bytes of every method on a link, and of the speed-up over dense steps.

    The bound of a step is the larger of its compute time and the wire time of its bytes. If the bytes are averages over
    a warm-up that the step times leave out, the bound is the compute time alone.
    """
    rows = []
    seconds, sent = found["seconds"], found["bytes"]
    alone = estimate(found["alone"]).value
    bytes_per_second = float(case.net) * 1e6 / 8  # counted bytes are those of whole frames
    for name, samples in seconds.items():
        method = METHODS[name]
        params = {"method": name, "kind": method.kind, **case.params}
        least = alone if method.warm_up else max(alone, sent[name] / bytes_per_second)
        rows.append(make_row("step_seconds", params, estimate(samples), "s", "lower", bound=least))
        rows.append(make_row("sent_bytes", params, estimate([sent[name]]), "B", "lower"))
        if name == DENSE or DENSE not in seconds:
            continue
        ratio = estimate([sent[DENSE] / sent[name]])
        rows.append(make_row("fewer_bytes", params, ratio, "ratio", "higher", target=method.fewer_bytes))
        rate, times = method.speedup or ("", None)
        target = times if rate == case.net else None
        bound = estimate(seconds[DENSE]).value / least
        rows.append(ratio_row("speedup_over_dense", params, seconds[DENSE], samples, DENSE, bound=bound, target=target))
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("methods", __doc__ or "", NETS, RANKS, ("sirtaki",), methods=tuple(METHODS), seeds=SEEDS)
    names = list(dict.fromkeys([DENSE, *options.more["methods"]]))
    seeds = [int(seed) for seed in options.more["seeds"]][: 1 if options.quick else None]
    rows: list[Row] = []
    for size in options.ranks:
        measure_trainings(options, store, size, names, seeds)
        found = {name: [store.samples(train_key(size, name, seed)) for seed in seeds] for name in names}
        for name in names:
            rows += training_rows(size, name, found)
        for rate in options.nets:
            case = NetCase(rate, size)
            if store.samples(case.key) is None:
                say(f"step times at {rate} Mbit/s")
                with network(rate, size, strict=not options.quick) as net:
                    found = measure_steps(options, net, case, [n for n in names if n != "zero"])
                store.keep(case.key, {**found, "alone": measure_alone(options, size)})
            rows += step_rows(case, store.samples(case.key))
    return finish(store, rows, compression_plots.methods)


if __name__ == "__main__":
    sys.exit(run(main))
