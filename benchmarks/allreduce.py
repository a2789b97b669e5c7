"""Dense float32 all-reduce, 4 KB to 64 MB: Sirtaki against torch.distributed on Gloo.

    python -m benchmarks.allreduce [--quick] [--nets loopback,1000,200,200x2] [--ranks 2,4,8] [--resume]

On 200x2 two ranks share a host and its link.
Both systems live in the same worker processes and take turns block by block. Each (network, ranks) is launched
several times, since a system's speed may depend on how its threads and connections happened to start.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.common import plots
from benchmarks.common.contest import NetCase, Samples, ratio_row
from benchmarks.common.group import Group
from benchmarks.common.rig import (
    LOOPBACK,
    PAIRS,
    QUICK_PAIRS,
    UNSHAPED,
    Contender,
    Options,
    Plan,
    finish,
    hosts_of,
    interleave,
    network,
    parse,
    ring_bytes,
    run,
    say,
)
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import estimate

OURS, THEIRS = "sirtaki", "gloo"
KB, MB = 1024, 1024 * 1024
SIZES = (4 * KB, 64 * KB, MB, 4 * MB, 64 * MB)
QUICK_SIZES = (4 * KB, MB, 4 * MB)
NETS = (LOOPBACK, "1000", "200", "200x2")
RANKS = (2, 4, 8)
LAUNCHES = 3
#: From this payload on the shaped link, not latency, should be the limit.
BULK_BYTES = 4 * MB
PAYLOAD_SHARE_TARGET = 0.95
#: On loopback, with 2 and 4 ranks: times faster than Gloo by bytes, and the share of the bound at the largest.
SHARED_SPEEDUPS = {4 * KB: 5.0, 4 * MB: 6.0, 64 * MB: 3.5}
SHARED_RANKS = (2, 4)
MEMORY_SHARE_TARGET = 0.7
#: Processor time is taken over CPU_PAIRS blocks; a block reduces CPU_BYTES, at least two tensors.
CPU_PAIRS, CPU_BYTES = 10, 64 * MB
#: A shaped row counts only where the links together carry at most this share of the bytes that the processors can move.
CPU_SHARE = 0.5


@dataclass(frozen=True)
class Case(NetCase):
    """`payload`: bytes of the tensor."""

    payload: int

    @property
    def key(self) -> str:
        """Key of the case in the partial file."""
        return f"{super().key}/{self.payload}"

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the case in result rows."""
        return {**super().params, "bytes": self.payload}

    @property
    def cpu_key(self) -> str | None:
        """Key of the case for processor time; None: processor time is not measured."""
        return f"{self.key}/cpu" if self.net == LOOPBACK and self.payload >= BULK_BYTES else None

    @property
    def speedup(self) -> float:
        """Target of the speed-up over Gloo."""
        shared = self.net == LOOPBACK and self.size in SHARED_RANKS
        return SHARED_SPEEDUPS.get(self.payload, 1.0) if shared else 1.0


# ---- ceilings ------------------------------------------------------------------------------


def measure_ceiling(options: Options, size: int) -> dict[str, float]:
    """Measures the processor limits: bytes a second that all ranks send over unshaped links and copy in memory."""
    payload = (4 if options.quick else 64) * MB
    with network(UNSHAPED, size) as net, Group(size, list(options.systems), net=net) as group:
        copied = sum(group.call("memory_copy", seconds=0.3))
        blocks = [[system, 2] for system in options.systems for _ in range(3)]
        answers = group.call("allreduce_blocks", timeout=300, numel=payload // 4, blocks=blocks)
    best = min(max(answer[i] for answer in answers) for i in range(len(blocks)))
    return {"sent": size * ring_bytes(size, payload) / best, "copied": copied}


def measure_copy(options: Options, size: int) -> dict[str, float]:
    """Measures the memory part of the ceiling alone, for machines where no namespaces can be made."""
    with Group(size, [], net=None) as group:
        return {"copied": sum(group.call("memory_copy", seconds=0.1 if options.quick else 0.3))}


def bound_seconds(case: Case, ceiling: dict[str, float]) -> float:
    """Physical limit: the payload rate of the wire or, on loopback, one memory copy of every byte that moves."""
    if case.net == LOOPBACK:
        return case.size * ring_bytes(case.size, case.payload) / ceiling["copied"]
    return case.wire_seconds(case.payload)


def cpu_limited(case: Case, ceiling: dict[str, float]) -> bool:
    """Returns True if the processors, not the links, may be the limit of this case."""
    if case.net == LOOPBACK:
        return True
    hosts = hosts_of(case.net, case.size)
    wire = hosts * ring_bytes(hosts, case.payload) / bound_seconds(case, ceiling)
    return wire > CPU_SHARE * ceiling["sent"]


# ---- measuring -----------------------------------------------------------------------------


def measure_net(options: Options, store: Store, net_name: str, size: int) -> None:
    """Measures all payloads on one network with one number of ranks."""
    payloads = QUICK_SIZES if options.quick else SIZES
    cases = [Case(net_name, size, payload) for payload in payloads]
    cases = [case for case in cases if store.samples(case.key) is None]
    if not cases:
        return
    launches = 1 if options.quick else LAUNCHES
    plan = Plan(
        pairs=(QUICK_PAIRS if options.quick else PAIRS) // launches,
        min_pairs=2,
        block_seconds=0.02 if options.quick else 0.05,
        budget_seconds=(5.0 if options.quick else 24.0) / launches,
    )
    gathered: dict[str, Samples] = {case.key: {} for case in cases}
    with network(net_name, size, strict=not options.quick) as net:
        for launch in range(launches):
            say(f"{net_name}, {size} ranks: launch {launch + 1} of {launches}")
            with Group(size, list(options.systems), net=net) as group:
                for case in cases:
                    found = measure_case(options, group, case, plan, check=launch == 0)
                    for system, samples in found.items():
                        gathered[case.key].setdefault(system, []).extend(samples)
                    if launch == 0 and case.cpu_key is not None:
                        store.keep(case.cpu_key, measure_cpu(options, group, case))
    for case in cases:
        store.keep(case.key, gathered[case.key])


def measure_case(options: Options, group: Group, case: Case, plan: Plan, *, check: bool) -> Samples:
    """Times all systems in turns; checks their sums first if `check` is set."""
    numel = case.payload // 4
    for system in options.systems if check else ():
        group.call("allreduce_check", timeout=120, system=system, numel=numel)
    contenders = [Contender(system, group) for system in options.systems]
    return interleave(contenders, "allreduce_blocks", plan, numel=numel)


def measure_cpu(options: Options, group: Group, case: Case) -> Samples:
    """Measures processor seconds of the busiest rank for an all-reduce, all systems in turns."""
    pairs = 3 if options.quick else CPU_PAIRS
    plan = Plan(pairs=pairs, min_pairs=pairs, block_seconds=0.0, block_iterations=max(2, CPU_BYTES // case.payload))
    contenders = [Contender(system, group) for system in options.systems]
    return interleave(contenders, "allreduce_cpu", plan, numel=case.payload // 4)


# ---- rows ----------------------------------------------------------------------------------


def cpu_rows(case: Case, samples: Samples) -> list[Row]:
    """Rows of processor time by payload, and of the processor time of Gloo over that of Sirtaki."""
    rows = []
    for system, seconds in samples.items():
        per_gb = estimate([value / case.payload * 1e9 for value in seconds])
        rows.append(make_row("cpu_seconds_per_gb", {"system": system, **case.params}, per_gb, "s", "lower"))
    if OURS in samples and THEIRS in samples:
        times = (samples[THEIRS], samples[OURS])
        rows.append(ratio_row("cpu_saving_over_gloo", case.params, *times, THEIRS, target=1.0))
    return rows


def rows_of(case: Case, samples: Samples, ceiling: dict[str, float]) -> list[Row]:
    """Rows of the time of each system, of the speed-up over Gloo, and of the share of the wire or memory ceiling."""
    bound = bound_seconds(case, ceiling)
    params = {**case.params, "cpu_limited": cpu_limited(case, ceiling)}
    rows = []
    reference = estimate(samples[THEIRS]).value if THEIRS in samples else None
    for system, seconds in samples.items():
        baseline = (THEIRS, reference) if system == OURS and reference is not None else None
        rows.append(
            make_row(
                "allreduce_seconds",
                {"system": system, **params},
                estimate(seconds),
                "s",
                "lower",
                baseline=baseline,
                bound=bound,
            )
        )
    if OURS not in samples:
        return rows
    if reference is not None:
        times = (samples[THEIRS], samples[OURS])
        limit = reference / bound
        rows.append(ratio_row("speedup_over_gloo", params, *times, THEIRS, bound=limit, target=case.speedup))
    if case.net == LOOPBACK and case.payload == max(SHARED_SPEEDUPS):
        share = estimate([bound / seconds for seconds in samples[OURS]])
        target = MEMORY_SHARE_TARGET if case.size in SHARED_RANKS else None
        rows.append(make_row("memory_share", params, share, "share", "higher", bound=1.0, target=target))
    if case.net != LOOPBACK and case.payload >= BULK_BYTES:
        share = estimate([bound / seconds for seconds in samples[OURS]])
        target = None if params["cpu_limited"] else PAYLOAD_SHARE_TARGET
        baseline = None if reference is None else (THEIRS, bound / reference)
        rows.append(
            make_row("payload_share", params, share, "share", "higher", baseline=baseline, bound=1.0, target=target)
        )
    return rows


def main() -> int:
    """Runs the measurements that the command line selects; returns the exit status."""
    options, store = parse("allreduce", __doc__ or "", NETS, RANKS, (OURS, THEIRS))
    if options.quick:
        options = replace(options, ranks=tuple(size for size in options.ranks if size <= 4))
    shaped = any(net != LOOPBACK for net in options.nets)
    rows: list[Row] = []
    for size in options.ranks:
        key = f"ceiling/{size}"
        if store.samples(key) is None:
            say(f"{size} ranks: what the processors can do")
            store.keep(key, measure_ceiling(options, size) if shaped else measure_copy(options, size))
    for net_name in options.nets:
        for size in options.ranks:
            if net_name != LOOPBACK and hosts_of(net_name, size) == 0:
                continue
            measure_net(options, store, net_name, size)
            for payload in QUICK_SIZES if options.quick else SIZES:
                case = Case(net_name, size, payload)
                rows += rows_of(case, store.samples(case.key), store.samples(f"ceiling/{size}"))
                if case.cpu_key is not None:
                    rows += cpu_rows(case, store.samples(case.cpu_key))
    return finish(store, rows, plots.allreduce)


if __name__ == "__main__":
    sys.exit(run(main))
