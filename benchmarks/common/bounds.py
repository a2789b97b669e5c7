"""The least time of a training step whose gradients cross one link: list scheduling at the finest granularity.

The backward pass makes gradients ready from the last layer to the first; the next forward pass needs them from the
first to the last. Of what is ready the link always carries what is needed first, and drops it for something more urgent
at once: for one machine with release times and tails that is optimal (Horn, 1974; Jackson, 1955). No partition, latency
or credit exists here, so no schedule of real messages is faster. Pure; standard library only.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Transfer:
    """The gradients of one layer on the link."""

    ready: float  # when they exist
    seconds: float  # what the link needs for them alone
    tail: float  # compute from their first use to the end of the forward pass


@dataclass(frozen=True)
class Span:
    """The link carries a layer without interruption."""

    layer: int
    begin: float
    end: float


def list_schedule(transfers: Sequence[Transfer]) -> list[Span]:
    """What the link carries when: of what is ready, the longest tail first, preemptively."""
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
    """By layer in forward order: seconds of forward, of backward and on the link. Time 0 is the start of backward."""
    ready = list(accumulate(reversed(backward)))[::-1]
    tails = list(accumulate(reversed(forward)))[::-1]
    return [Transfer(*values) for values in zip(ready, wire, tails, strict=True)]


def step_bound(forward: Sequence[float], backward: Sequence[float], wire: Sequence[float], sync: str) -> float:
    """Seconds of a step in which each layer's forward ("forward"), or all of it ("backward"), awaits the gradients."""
    transfers = transfers_of(forward, backward, wire)
    compute = sum(forward) + sum(backward)
    spans = list_schedule(transfers)
    if sync == "backward":
        return max([compute, *(span.end + sum(forward) for span in spans)])
    ends = {span.layer: span.end for span in spans}
    return max([compute, *(end + transfers[layer].tail for layer, end in ends.items())])
