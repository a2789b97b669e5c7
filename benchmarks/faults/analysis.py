"""Figures of a training under faults, from the lines of its ranks and the times of the faults alone. Pure.

A commit belongs to the training unless a later membership made a step of the same number, or a smaller one, again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.faults.records import Fault, Line, by_process

#: Seconds without a line after which a process that nobody stopped counts as dead.
SILENT = 10.0


@dataclass(frozen=True)
class Recovery:
    """Cost of a fault to the others.

    `seconds`: from the fault to the next commit without the victim, of the survivor that comes last. `redone`: commits
    that were made again. `void`: steps that were begun and did not count.
    """

    seconds: float
    redone: int
    void: int


def members(lines: Iterable[Line]) -> dict[int, set[int]]:
    """Returns the processes that have lines in each membership."""
    found: dict[int, set[int]] = {}
    for line in lines:
        found.setdefault(line.generation, set()).add(line.pid)
    return found


def kept(lines: Iterable[Line]) -> list[Line]:
    """Returns the committed lines that later memberships have not undone, by step."""
    by_generation: dict[int, list[Line]] = {}
    for line in lines:
        by_generation.setdefault(line.generation, []).append(line)
    first, found = float("inf"), []
    for _, mine in sorted(by_generation.items(), reverse=True):
        found += [line for line in mine if line.step < first and line.committed]
        first = min(first, *(line.step for line in mine))
    return sorted(found, key=lambda line: (line.step, line.slot))


def recovery(lines: Sequence[Line], fault: Fault, gone: Collection[int]) -> Recovery | None:
    """Returns the cost of a fault; None if nobody committed a step after it without the victim.

    `gone`: processes that earlier faults had taken.
    """
    groups = members(lines)
    found: list[Recovery] = []
    for pid, mine in by_process(lines).items():
        before = [line for line in mine if line.time <= fault.time]
        after = [line for line in mine if line.time > fault.time]
        if not before or pid == fault.pid or pid in gone:
            continue
        again = next((i for i, line in enumerate(after) if line.committed and _without(line, fault, groups)), None)
        if again is not None:
            found.append(_cost([*before, *after[:again]], after[again], fault))
    if not found:
        return None
    return Recovery(max(one.seconds for one in found), max(one.redone for one in found), max(one.void for one in found))


def _without(line: Line, fault: Fault, groups: Mapping[int, set[int]]) -> bool:
    return fault.pid not in groups[line.generation]


def _cost(earlier: Sequence[Line], first: Line, fault: Fault) -> Recovery:
    last = next((line for line in reversed(earlier) if line.committed), earlier[0])
    redone = max(0, last.step + 1 - first.step)
    return Recovery(first.time - fault.time, redone, max(0, first.attempts - last.attempts - 1))


def recoveries(lines: Sequence[Line], faults: Sequence[Fault]) -> list[Recovery | None]:
    """Returns the cost of each fault, in order."""
    ordered = sorted(faults, key=lambda fault: fault.time)
    return [recovery(lines, fault, {one.pid for one in ordered[:i]}) for i, fault in enumerate(ordered)]


def join_gaps(lines: Sequence[Line], faults: Sequence[Fault]) -> list[float]:
    """Returns, for each membership with a new process, the longest time between commits of one that was there.

    Memberships that a fault has begun as well are left out.
    """
    processes = by_process(line for line in lines if line.committed)
    firsts = {pid: mine[0].generation for pid, mine in processes.items()}
    gaps = []
    for generation, pids in sorted(members(lines).items())[1:]:
        if generation not in {firsts.get(pid) for pid in pids}:
            continue
        spans = []
        for pid in pids:
            at = next((i for i, line in enumerate(processes.get(pid, [])) if line.generation == generation), 0)
            if at > 0:
                spans.append((processes[pid][at - 1].time, processes[pid][at].time))
        if spans and not any(begin <= fault.time <= end for begin, end in spans for fault in faults):
            gaps.append(max(end - begin for begin, end in spans))
    return gaps


def returns(lines: Sequence[Line], faults: Sequence[Fault]) -> list[float]:
    """Returns the seconds from each fault to the next commit of a process in the place of the victim."""
    found = []
    for fault in faults:
        times = [line.time for line in lines if line.slot == fault.slot and line.committed]
        back = [time - fault.time for time in times if time > fault.time]
        found += [min(back)] if back else []
    return found


def unequal_digests(lines: Iterable[Line]) -> int:
    """Returns the number of kept commits in which ranks had different parameters."""
    by_step: dict[int, set[int]] = {}
    for line in kept(lines):
        by_step.setdefault(line.step, set()).add(line.digest)
    return sum(len(digests) > 1 for digests in by_step.values())


def final_loss(lines: Iterable[Line], last: int) -> float | None:
    """Returns the mean of the `last` losses of kept commits, in nats; None if there are none."""
    losses = [line.loss for line in kept(lines) if line.loss is not None][-last:]
    return sum(losses) / len(losses) if losses else None


def committed_samples(lines: Iterable[Line]) -> list[tuple[float, int]]:
    """Returns time and number of samples of each kept step, also of ranks killed before they wrote it down."""
    by_step: dict[int, list[Line]] = {}
    for line in kept(lines):
        by_step.setdefault(line.step, []).append(line)
    return sorted((max(line.time for line in mine), _drawn(mine) + _unwritten(mine)) for mine in by_step.values())


def _drawn(mine: Sequence[Line]) -> int:
    return sum(len(line.indices) for line in mine)


def _unwritten(mine: Sequence[Line]) -> int:
    return max(0, mine[0].size - len(mine)) * max(len(line.indices) for line in mine)


def spoiled_samples(lines: Iterable[Line], dataset: int) -> tuple[int, int]:
    """Returns the numbers of samples that finished epochs have left out, and that they have had twice.

    Left aside are those of ranks killed between commit and line, and the padding of the last step of an epoch.
    """
    epochs: dict[int, dict[int, list[Line]]] = {}
    for line in kept(lines):
        epochs.setdefault(line.epoch, {}).setdefault(line.step, []).append(line)
    lost = doubled = 0
    for epoch in sorted(epochs)[:-1]:
        steps = epochs[epoch]
        counts = Counter(index for mine in steps.values() for line in mine for index in line.indices)
        unwritten = sum(map(_unwritten, steps.values()))
        padding = max(steps.items())[1][0].size - 1
        lost += max(0, dataset - len(counts) - unwritten)
        doubled += max(0, counts.total() - len(counts) - padding)
    return lost, doubled


def restarted_survivors(lines: Iterable[Line], faults: Sequence[Fault], end: float) -> int:
    """Returns the number of processes that ended though no fault hit them, in a training that went on until `end`."""
    victims = {fault.pid for fault in faults}
    processes = by_process(lines)
    latest: dict[int, float] = {}
    for mine in processes.values():
        latest[mine[0].slot] = max(latest.get(mine[0].slot, 0.0), mine[0].time)
    return sum(
        pid not in victims and (latest[mine[0].slot] > mine[-1].time or mine[-1].time < end - SILENT)
        for pid, mine in processes.items()
    )
