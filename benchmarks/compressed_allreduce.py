"""An all-reduce of 16M floats by each codec, against the dense one of torch.distributed on Gloo, which DDP uses.

    python -m benchmarks.compressed_allreduce [--quick] [--nets 200,200x2] [--ranks 4,2] [--methods twobit] [--resume]

On 200x2 two ranks share a host and its link. All methods live in the same worker processes and take turns. The same
steps on loopback show the cost of the codecs where the wire costs nothing. The interfaces of the shaped links count
bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.common.contest import NetCase, Samples, ratio_row
from benchmarks.common.group import Group, GroupError
from benchmarks.common.rig import (
    LOOPBACK,
    PAIRS,
    Contender,
    Options,
    Plan,
    finish,
    hosts_of,
    interleave,
    network,
    parse,
    run,
    say,
    split_net,
)
from benchmarks.netns import LinkSpec, Net
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate
from benchmarks.training import compression_plots
from benchmarks.training.compressed import GLOO

NUMEL, QUICK_NUMEL = 16 << 20, 1 << 20
NETS = ("200", "200x2")
RANKS = (4, 2)
WARM_STEPS = 6
BYTE_STEPS, QUICK_BYTE_STEPS = 3, 2
#: Bytes may be this many times the formula, and time this many times the larger of wire and codec time.
SLACK_BYTES, SLACK_TIME = 1.05, 1.15


def _scatter(hosts: int, payload: float) -> float:
    return 2.0 * (hosts - 1) / hosts * payload


@dataclass(frozen=True)
class Method:
    """A codec: text, bytes of an element on the wire by definition, bytes that a host sends, and the target."""

    text: str
    element_bytes: float
    sent: Callable[[int, float], float] = _scatter
    speedup: float | None = None  # over Gloo with 4 ranks, each with a link of its own

    def formula(self, hosts: int, numel: int) -> float:
        """Returns the bytes that have to leave each host."""
        return self.sent(hosts, self.element_bytes * numel)


METHODS = {
    GLOO: Method("", 4.0),
    "fp16": Method("fp16", 2.0),
    "int8": Method("int8:wire=scatter", 1.0),
    "twobit": Method("twobit:wire=scatter", 0.25, speedup=10.0),
    "onebit": Method("onebit:wire=scatter", 0.125),
    # 5 of 512: an offset of 2 bytes and a value of 4 each.
    "group_topk": Method("group_topk:rate=0.01,group=512,wire=scatter", 30 / 512, speedup=20.0),
}


@dataclass(frozen=True)
class Case(NetCase):
    """`numel`: floats of the gradient."""

    numel: int

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {**super().params, "bytes": 4 * self.numel}

    def formula(self, method: Method) -> float:
        """Returns the bytes that have to leave each host."""
        return method.formula(hosts_of(self.net, self.size), self.numel)

    def wire(self, method: Method) -> float:
        """Least seconds on the links, which must be shaped."""
        rate = LinkSpec(rate_mbit=split_net(self.net).rate_mbit).payload_bytes_per_second
        assert rate is not None
        return self.formula(method) / rate

    def speedup(self, method: Method) -> float | None:
        """Target of the speed-up over Gloo."""
        return method.speedup if (self.size, split_net(self.net).ranks_per_host) == (4, 1) else None


def chosen_methods(options: Options) -> list[str]:
    """Returns the methods that the options select; Gloo is always among them."""
    return list(dict.fromkeys([GLOO, *options.more["methods"]]))


def measure(options: Options, net: Net | None, case: Case) -> dict[str, Any]:
    """Measures the seconds of all methods in turns, and the bytes that each sends in a step."""
    methods = [name for name in chosen_methods(options) if net is not None or name != GLOO]
    with Group(case.size, ["gloo", "sirtaki"], net=net) as group:
        texts = {name: METHODS[name].text for name in methods}
        group.call("compressed_prepare", timeout=300, methods=texts, numel=case.numel, seed=0)
        for name in methods:
            check(group, name)
        group.call("compressed_blocks", timeout=600, blocks=[[name, WARM_STEPS] for name in methods if name != GLOO])
        pairs = 3 if options.quick else PAIRS
        plan = Plan(pairs=pairs, min_pairs=min(pairs, 10), block_seconds=0.0, budget_seconds=360.0)
        samples = interleave([Contender(name, group) for name in methods], "compressed_blocks", plan)
        steps = QUICK_BYTE_STEPS if options.quick else BYTE_STEPS
        return {"seconds": samples, "bytes": count_bytes(group, net, methods, steps)}


def check(group: Group, name: str) -> None:
    """Raises an error unless all ranks have the same result and it points in the direction of the gradients."""
    answers = group.call("compressed_check", timeout=300, method=name)
    if any(answer[:2] != answers[0][:2] for answer in answers):
        raise GroupError(f"{name}: the results of the ranks differ: {answers}")
    if sum(answer[2] for answer in answers) <= 0.0:
        raise GroupError(f"{name}: the result has nothing of the gradients: {answers}")


def count_bytes(group: Group, net: Net | None, methods: list[str], steps: int) -> dict[str, float]:
    """Bytes that the interface of the busiest host sends in a step, acknowledgements and counted headers included."""
    if net is None:
        return {}
    found = {}
    for name in methods:
        before = net.bytes()
        group.call("compressed_blocks", timeout=600, blocks=[[name, steps]])
        sent = max(after.sent - earlier.sent for after, earlier in zip(net.bytes(), before, strict=True))
        found[name] = sent / steps
    return found


def rows_of(case: Case, samples: Samples, counted: dict[str, float], alone: Samples) -> list[Row]:
    """Rows of every method: time, speed-up, and bytes and time over their bounds. `alone`: seconds on loopback."""
    rows = []
    for name, seconds in samples.items():
        method = METHODS[name]
        params = {"method": name, **case.params}
        wire, formula = case.wire(method), case.formula(method)
        rows.append(make_row("step_seconds", params, estimate(seconds), "s", "lower", bound=wire))
        sent = estimate([counted[name] / formula])
        slack = None if name == GLOO else SLACK_BYTES
        rows.append(make_row("sent_over_formula", params, sent, "ratio", "lower", bound=1.0, target=slack))
        if name == GLOO:
            continue
        codec = estimate(alone[name]).value
        over = estimate([value / max(wire, codec) for value in seconds])
        rows.append(make_row("time_over_bound", params, over, "ratio", "lower", bound=1.0, target=SLACK_TIME))
        bound = estimate(samples[GLOO]).value / max(wire, codec)
        times = (samples[GLOO], seconds)
        rows.append(ratio_row("speedup_over_gloo", params, *times, GLOO, bound=bound, target=case.speedup(method)))
    return rows


def codec_rows(alone: Case, samples: Samples) -> list[Row]:
    """Rows of the seconds on loopback, which stand for the seconds of the codec."""
    return [
        make_row("codec_seconds", {"method": name, **alone.params}, estimate(seconds), "s", "lower")
        for name, seconds in samples.items()
    ]


def measure_missing(options: Options, store: Store, case: Case) -> None:
    """Measures a case on one network unless the store holds the result."""
    if store.samples(case.key) is not None:
        return
    say(case.key)
    with network(case.net, case.size, strict=not options.quick) as net:
        store.keep(case.key, measure(options, net, case))


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    methods = tuple(name for name in METHODS if name != GLOO)
    options, store = parse("compressed_allreduce", __doc__ or "", NETS, RANKS, ("sirtaki",), methods=methods)
    numel = QUICK_NUMEL if options.quick else NUMEL
    rows: list[Row] = []
    for size in options.ranks if options.nets else ():
        alone = Case(LOOPBACK, size, numel)
        measure_missing(options, store, alone)
        rows += codec_rows(alone, store.samples(alone.key)["seconds"])
        for net in options.nets:
            if hosts_of(net, size) == 0:
                continue
            case = Case(net, size, numel)
            measure_missing(options, store, case)
            found = store.samples(case.key)
            rows += rows_of(case, found["seconds"], found["bytes"], store.samples(alone.key)["seconds"])
    return finish(store, rows, compression_plots.compressed_allreduce)


if __name__ == "__main__":
    sys.exit(run(main))
