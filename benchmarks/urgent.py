"""A small urgent all-reduce while a large one is in flight on all ranks.

    python -m benchmarks.urgent [--quick] [--nets 200] [--ranks 4,2] [--resume]

Both are asynchronous named operations of the Python adapter. Sirtaki starts the urgent one with a smaller priority
number; "in order" starts it when the large one has ended, like a queue without priorities; with torch the urgent one is
the second asynchronous all_reduce of the process group. Rounds without the urgent operation show its cost to the large
one, rounds without the large operation the time of the urgent one on an idle link.

The target allows for the bytes in flight ahead of the urgent operation, so a large credit would make the target easy.
Two more ratios do not depend on the credit: against the urgent bytes alone on the wire, and against the all_reduce of
torch on an idle link.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.common import plots
from benchmarks.common.contest import NetCase, ratio_row
from benchmarks.common.group import Group, GroupError
from benchmarks.common.rig import LOOPBACK, Options, finish, network, parse, run, say, turn_order
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate

OURS, THEIRS = "sirtaki", "gloo"
#: Modes of a turn: name -> (system, start of the urgent operation).
PRIORITY, IN_ORDER, ALONE, IDLE = "priority", "in_order", "alone", "idle"
GLOO, GLOO_IDLE = "gloo", "gloo_idle"
MODES = {
    PRIORITY: (OURS, "urgent"),
    IN_ORDER: (OURS, "after"),
    ALONE: (OURS, "none"),
    IDLE: (OURS, "only"),
    GLOO: (THEIRS, "urgent"),
    GLOO_IDLE: (THEIRS, "only"),
}
NETS = ("200",)
RANKS = (4, 2)
MB = 1024 * 1024
BULK_BYTES, URGENT_BYTES = 64 * MB, 64 * 1024
#: Share of the bound of the large operation after which the urgent one starts.
START_SHARE = 0.1
TURNS, QUICK_TURNS = 12, 2
TIMES_BOUND_TARGET = 1.3
SPEEDUP_TARGET = 30.0
BULK_SLOWDOWN_TARGET = 1.03


@dataclass(frozen=True)
class Case(NetCase):
    """One configuration; the operations are the same in all of them."""

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {**super().params, "bulk_bytes": BULK_BYTES, "urgent_bytes": URGENT_BYTES}


def measure(options: Options, store: Store, case: Case) -> None:
    """Measures rounds of every mode in turns; keeps seconds by mode and the credit of a large operation."""
    modes = [mode for mode, (system, _) in MODES.items() if system in options.systems]
    samples: dict[str, list[float]] = {}
    with (
        network(case.net, case.size, strict=not options.quick) as net,
        Group(case.size, list(options.systems), net=net) as group,
    ):
        group.call("urgent_prepare", bulk_numel=BULK_BYTES // 4, urgent_numel=URGENT_BYTES // 4)
        for turn in range(QUICK_TURNS if options.quick else TURNS):
            say(f"{case.key}: turn {turn + 1}")
            for mode in turn_order(modes, turn):
                system, urgent = MODES[mode]
                delay = START_SHARE * case.wire_seconds(BULK_BYTES)
                answers = group.call("urgent_round", timeout=300, system=system, urgent=urgent, delay=delay)
                for what in answers[0]:
                    samples.setdefault(f"{mode}.{what}", []).append(max(answer[what] for answer in answers))
                time.sleep(0.05)
        credit = credit_in_force(group) if OURS in options.systems else 0
    store.keep(case.key, {"seconds": samples, "credit": credit})


def credit_in_force(group: Group) -> int:
    """Payload bytes of the large operation that may be in flight, as the runtime reports; the least of all ranks."""
    credit = min(int(stats["ops.credit_bytes"]["value"]) for stats in group.call("stats", system=OURS))
    if credit <= 0:
        raise GroupError(f"the runtime says that {credit} bytes of a large operation may be in flight")
    return min(credit, BULK_BYTES)


def rows_of(case: Case, found: dict[str, Any]) -> list[Row]:
    """Rows of the time of the urgent operation and of its ratios, and of the delay of the large operation.

    Ratios are those to the bound, the bare wire, an idle link and the start in order.
    """
    seconds, credit = found["seconds"], int(found["credit"])
    bound = case.wire_seconds(credit + URGENT_BYTES)
    params = {**case.params, "credit_bytes": credit}
    rows = []
    for mode in (PRIORITY, IN_ORDER, IDLE, GLOO, GLOO_IDLE):
        if f"{mode}.urgent" not in seconds:
            continue
        ours = mode == PRIORITY
        rows.append(
            make_row(
                "urgent_seconds",
                {"mode": mode, **params},
                estimate(seconds[f"{mode}.urgent"]),
                "s",
                "lower",
                bound=bound if ours else None,
                target=TIMES_BOUND_TARGET * bound if ours else None,
            )
        )
    if f"{PRIORITY}.urgent" not in seconds:
        return rows
    urgent = seconds[f"{PRIORITY}.urgent"]
    alone = case.wire_seconds(URGENT_BYTES)
    figure = estimate([value / alone for value in urgent])
    rows.append(make_row("urgent_over_wire", params, figure, "ratio", "lower", baseline=("wire", 1.0), bound=1.0))
    for mode, name in ((GLOO_IDLE, "urgent_over_idle_gloo"), (IDLE, "urgent_over_idle")):
        if f"{mode}.urgent" in seconds:
            idle = seconds[f"{mode}.urgent"]
            least = alone / estimate(idle).value
            rows.append(ratio_row(name, params, urgent, idle, mode, better="lower", bound=least))
    in_order = seconds[f"{IN_ORDER}.urgent"]
    rows.append(ratio_row("urgent_speedup", params, in_order, urgent, IN_ORDER, target=SPEEDUP_TARGET))
    if f"{GLOO}.urgent" in seconds:
        rows.append(ratio_row("urgent_speedup_over_gloo", params, seconds[f"{GLOO}.urgent"], urgent, GLOO))
    bulk = (seconds[f"{PRIORITY}.bulk"], seconds[f"{ALONE}.bulk"])
    least, most = 1.0 + URGENT_BYTES / BULK_BYTES, BULK_SLOWDOWN_TARGET
    rows.append(ratio_row("bulk_slowdown", params, *bulk, ALONE, better="lower", bound=least, target=most))
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("urgent", __doc__ or "", NETS, RANKS, (OURS, THEIRS))
    ranks = options.ranks[:1] if options.quick else options.ranks
    rows: list[Row] = []
    for case in [Case(net, size) for net in options.nets if net != LOOPBACK for size in ranks]:
        if store.samples(case.key) is None:
            measure(options, store, case)
        rows += rows_of(case, store.samples(case.key))
    return finish(store, rows, plots.urgent)


if __name__ == "__main__":
    sys.exit(run(main))
