"""Least time of a training step whose gradients cross one link: list scheduling at the finest granularity.

The backward pass makes gradients ready from the last layer to the first; the next forward pass needs them from the
first to the last. The link always carries the ready gradient that is needed first, and a more urgent one preempts it at
once: for one machine with release times and tails that is optimal (Horn, 1974; Jackson, 1955). The model has no
partitions, latency or credit, so no schedule of real messages is faster. Pure; standard library only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Transfer:
    """Gradients of one layer on the link; times in seconds."""

    ready: float  # time at which they exist
    seconds: float  # time on the link without other transfers
    tail: float  # compute from their first use to the end of the forward pass


@dataclass(frozen=True)
class Span:
    """Period in which the link carries a layer without interruption."""

    layer: int
    begin: float
    end: float


def list_schedule(transfers: Sequence[Transfer]) -> list[Span]:
    """Returns the schedule of the link: the ready transfer with the longest tail first, with preemption."""
    arrivals = sorted(range(len(transfers)), key=lambda i: transfers[i].ready)
    left = [transfer.seconds for transfer in transfers]
    waiting: list[tuple[float, int]] = []
    spans: list[Span] = []
    now, place = 0.0, 0
    while place < len(arrivals) or waiting:
        if not waiting:
            now = max(now, transfers[arrivals[place]].ready)
        while place < len(arrivals) and transfers[arrivals[place]].ready <= now:
            heapq.heappush(waiting, (-transfers[arrivals[place]].tail, arrivals[place]))
            place += 1
        layer = waiting[0][1]
        arrival = transfers[arrivals[place]].ready if place < len(arrivals) else float("inf")
        end = min(now + left[layer], arrival)
        _extend(spans, Span(layer, now, end))
        left[layer] = 0.0 if end < arrival else left[layer] - (end - now)
        if left[layer] <= 0.0:
            heapq.heappop(waiting)
        now = end
    return spans


def _extend(spans: list[Span], span: Span) -> None:
    if spans and spans[-1].layer == span.layer and spans[-1].end == span.begin:
        spans[-1] = Span(span.layer, spans[-1].begin, span.end)
    elif span.end > span.begin:
        spans.append(span)


def transfers_of(forward: Sequence[float], backward: Sequence[float], wire: Sequence[float]) -> list[Transfer]:
    """Returns a transfer for each layer; time 0 is the start of backward.

    Arguments are seconds by layer in forward order: of forward, of backward and on the link.
    """
    ready = list(accumulate(reversed(backward)))[::-1]
    tails = list(accumulate(reversed(forward)))[::-1]
    return [Transfer(*values) for values in zip(ready, wire, tails, strict=True)]


def step_bound(forward: Sequence[float], backward: Sequence[float], wire: Sequence[float], sync: str) -> float:
    """Least seconds of a step. `sync`: the forward pass waits layer by layer ("forward") or as a whole ("backward")."""
    transfers = transfers_of(forward, backward, wire)
    compute = sum(forward) + sum(backward)
    spans = list_schedule(transfers)
    if sync == "backward":
        return max([compute, *(span.end + sum(forward) for span in spans)])
    ends = {span.layer: span.end for span in spans}
    return max([compute, *(end + transfers[layer].tail for layer, end in ends.items())])
