"""Common parts of the benchmarks that compare systems on a network: cases, contenders, ratios.

Owned by: the main process of a benchmark, one thread. Does not: choose the cases, or judge the figures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.common.group import Group
from benchmarks.common.rig import (
    LOOPBACK,
    Contender,
    Options,
    Plan,
    hosts_of,
    interleave,
    network,
    say,
    split_net,
    wire_bound,
)
from benchmarks.netns import Net
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import paired_ratio

HOROVOD = "horovod"
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class NetCase:
    """One configuration; benchmarks add fields. `net`: LOOPBACK, or links in the form of rig.split_net()."""

    net: str
    size: int

    @property
    def key(self) -> str:
        """Key of the case in the partial file."""
        return f"{self.net}/{self.size}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        if self.net == LOOPBACK:
            return {"net": LOOPBACK, "rate_mbit": None, "ranks": self.size}
        rate, delay, per_host = split_net(self.net)
        placed = {"ranks_per_host": per_host} if per_host > 1 else {}
        far = {"delay_ms": delay} if delay > 0 else {}
        return {"net": "netns", "rate_mbit": rate, "ranks": self.size, **placed, **far}

    def wire_seconds(self, payload: int) -> float:
        """Least seconds of an all-reduce of `payload` bytes, each of which crosses a shaped link once."""
        return wire_bound(hosts_of(self.net, self.size), payload, split_net(self.net).rate_mbit)


@dataclass(frozen=True)
class TaskCase(NetCase):
    """A training on a network. `task`: name of the trained net."""

    task: str

    @property
    def key(self) -> str:
        """Key of the case in the partial file."""
        return f"{super().key}/{self.task}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {**super().params, "task": self.task}


SomeCase = TypeVar("SomeCase", bound=NetCase)


@contextlib.contextmanager
def contenders_on(options: Options, size: int, net: Net | None, horovod_every: int = 1) -> Iterator[list[Contender]]:
    """Starts the selected systems: Horovod in a group of its own interpreter, the others in one group."""
    with contextlib.ExitStack() as stack:
        together = [system for system in options.systems if system != HOROVOD]
        made = []
        if together:
            group = stack.enter_context(Group(size, together, net=net))
            made += [Contender(system, group) for system in together]
        if HOROVOD in options.systems:
            assert options.horovod_python is not None
            group = Group(size, [HOROVOD], net=net, python=options.horovod_python)
            made.append(Contender(HOROVOD, stack.enter_context(group), horovod_every))
        yield made


def groups_of(contenders: Sequence[Contender]) -> list[Group]:
    """Returns each group once."""
    return list(dict.fromkeys(contender.group for contender in contenders))


def training_samples(
    contenders: Sequence[Contender],
    recipe: dict[str, Any],
    plan: Plan,
    warm_steps: Mapping[str, int] | None = None,
) -> Samples:
    """Prepares, checks and warms up the paced steps of every system, then times them in turns."""
    try:
        if not recipe["catch_up"]:
            for group in groups_of(contenders):
                group.call("training_calibrate", recipe=recipe)
        for contender in contenders:
            contender.group.call("training_prepare", system=contender.name, recipe=recipe)
            contender.group.call("training_check", system=contender.name)
            if warm_steps is not None:
                contender.group.call("training_warm", system=contender.name, steps=warm_steps[contender.name])
        return interleave(contenders, "training_blocks", plan)
    finally:
        for group in groups_of(contenders):
            group.call("training_drop")


def measure_missing(
    options: Options,
    store: Store,
    cases: Sequence[SomeCase],
    measure: Callable[[list[Contender], SomeCase], Samples],
    horovod_every: int = 1,
) -> None:
    """Measures the cases, all of one network and number of ranks, that the store does not hold; keeps each at once."""
    cases = [case for case in cases if store.samples(case.key) is None]
    if not cases:
        return
    net_name, size = cases[0].net, cases[0].size
    with (
        network(net_name, size, strict=not options.quick) as net,
        contenders_on(options, size, net, horovod_every) as contenders,
    ):
        for case in cases:
            say(case.key)
            store.keep(case.key, measure(contenders, case))


def ratio_row(
    metric: str,
    params: Mapping[str, Any],
    over: Sequence[float],
    under: Sequence[float],
    baseline: str,
    *,
    better: str = "higher",
    bound: float | None = None,
    target: float | None = None,
    by_value: bool = False,
) -> Row:
    """Returns a row for the ratio of paired samples of two systems; `baseline` names the system that counts as 1."""
    return make_row(
        metric,
        params,
        paired_ratio(over, under),
        "ratio",
        better,
        baseline=(baseline, 1.0),
        bound=bound,
        target=target,
        by_value=by_value,
    )
