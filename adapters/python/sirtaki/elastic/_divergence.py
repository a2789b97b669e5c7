"""Differences between ranks in tensors that should be equal on all of them: majorities and texts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Fingerprint(NamedTuple):
    """The description of a tensor that ranks exchange."""

    #: Name of the optimizer in the state whose state has the tensor, or "" for a parameter.
    optimizer: str
    #: Shape and type.
    kind: str
    digest: bytes


#: Names in a text; a number tells the others.
_MOST_NAMES = 5
_CAUSES = "faulty memory, or code or a random generator that is not the same on all ranks"


@dataclass(frozen=True)
class Difference:
    """A tensor that is not equal on all ranks."""

    name: str
    #: The ranks with equal values, the most ranks first; each side in order.
    sides: tuple[tuple[int, ...], ...]
    optimizer: str = ""
    #: Some ranks have no such tensor, or one of another kind.
    of_other_kind: bool = False

    @property
    def majority(self) -> tuple[int, ...] | None:
        """The side with more than half of the ranks, if there is one."""
        ranks = sum(len(side) for side in self.sides)
        return self.sides[0] if 2 * len(self.sides[0]) > ranks else None


def differences(rows: Sequence[Mapping[str, Fingerprint]]) -> list[Difference]:
    """Returns the tensors that are not equal on all ranks, in an order that is the same on all ranks.

    Args:
        rows: the fingerprints of each rank, by the name of the tensor.
    """
    found = []
    for name in dict.fromkeys(name for row in rows for name in row):
        sides: dict[Fingerprint | None, list[int]] = {}
        for rank, row in enumerate(rows):
            sides.setdefault(row.get(name), []).append(rank)
        if len(sides) > 1:
            ordered = sorted(map(tuple, sides.values()), key=lambda side: (-len(side), side))
            there = [one for one in sides if one is not None]
            of_other_kind = len(there) < len(sides) or len({one.kind for one in there}) > 1
            found.append(Difference(name, tuple(ordered), there[0].optimizer, of_other_kind))
    return found


def roots_of(found: Sequence[Difference]) -> dict[str, int | None]:
    """Returns the optimizers of which some ranks lack tensors, each with a rank that is right in all of its tensors.

    The rank is None if there is none, and for "": parameters, to which no exchange gives another shape.
    """
    roots: dict[str, int | None] = {}
    for name in dict.fromkeys(one.optimizer for one in found if one.of_other_kind):
        sides = [set(one.majority or ()) for one in found if one.optimizer == name]
        roots[name] = min(set.intersection(*sides), default=None) if name else None
    return roots


def can_heal(found: Sequence[Difference]) -> bool:
    """Returns whether majorities tell the values of all these tensors, and of all that some ranks lack."""
    return all(one.majority for one in found) and None not in roots_of(found).values()


def described(found: Sequence[Difference]) -> str:
    """Returns which ranks differ in which tensors."""
    alike: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for one in found:
        alike.setdefault(one.sides, []).append(one.name)
    return "; ".join(_described(sides, names) for sides, names in alike.items())


def told_of_healing(found: Sequence[Difference]) -> str:
    """Returns the warning that the values of the majority have replaced others."""
    sources = sorted({one.majority[0] for one in found if one.majority})
    return f"{described(found)}: the values of {ranks_text(sources)} replace the others; likely cause: {_CAUSES}"


def told_of_report(found: Sequence[Difference], heals: bool) -> str:
    """Returns the warning that ranks differ and go on.

    Args:
        found: the differences.
        heals: the majority would heal them if there were one.
    """
    if not heals:
        return f"{described(found)}, and train on (elastic.divergence = report); likely cause: {_CAUSES}"
    return (
        f"{described(found)}, and train on, because there is no majority, or another number of tensors or shape; "
        f"likely cause: {_CAUSES}, or different CPUs. With --elastic-divergence stop, a job ends instead"
    )


def told_of_end(found: Sequence[Difference]) -> str:
    """Returns why the job ends; names the first difference."""
    first, more = found[0], len(found) - 1
    rest = f" (and {more} more {'tensors differ' if more > 1 else 'tensor differs'})" if more else ""
    why = ", and no majority tells which are right" if first.majority is None else ""
    sides = " and ".join(map(ranks_text, first.sides))
    return (
        f"{first.name} has different values on {sides}{rest}{why}; likely cause: {_CAUSES}, or different CPUs. Start "
        "again from a checkpoint or a snapshot of before; where ranks may differ, add --elastic-divergence report"
    )


def ranks_text(ranks: Iterable[int]) -> str:
    """Returns "rank 3", or "ranks 0-2, 5" for several."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank {text}" if text.isdigit() else f"ranks {text}"


def _described(sides: tuple[tuple[int, ...], ...], names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    listed = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    if Difference("", sides).majority is None:
        return f"{' and '.join(map(ranks_text, sides))} differ in {listed}"
    others = [rank for side in sides[1:] for rank in side]
    return f"{ranks_text(others)} {'differs' if len(others) == 1 else 'differ'} from {ranks_text(sides[0])} in {listed}"
