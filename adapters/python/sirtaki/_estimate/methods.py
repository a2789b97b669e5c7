"""The methods of an estimate, and the prediction of each by the runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sirtaki import _core
from sirtaki._estimate.conditions import Conditions
from sirtaki._estimate.tensors import Model, descriptions
from sirtaki._local_sgd import affordable_rounds, rounds_between_averages
from sirtaki.compression import for_optimizer
from sirtaki.local_updates import LocalUpdates

DENSE, AUTO, LOCAL = "dense", "auto", "local updates"
#: Methods of averaged gradients -> value of --compression.
CODECS = {DENSE: "none", "int8": "int8", "low rank": "powersgd:rank=4", "top-k": "group_topk:rate=0.01", AUTO: "auto"}
_NS = 1e9
#: Codec of gradients, interval of local updates, and codec of differences; without interval, gradients are averaged.
Method = tuple[str, str | None, str | None]


@dataclass(frozen=True)
class Estimate:
    """A predicted step.

    Attributes:
        method: name in the table.
        option: the option of sirtakirun that selects it.
        seconds: a step, once policies have settled.
        exposed: the part of it in which the program waits.
        sent_bytes: payload that a rank sends in a step.
        speedup: over the dense step.
        how: the decision of a policy, or empty.
    """

    method: str
    option: str
    seconds: float
    exposed: float
    sent_bytes: float
    speedup: float
    how: str


def estimates(model: Model, at: Conditions) -> list[Estimate]:
    """Returns the predictions of all methods; the first is the dense step."""
    config = LocalUpdates("auto")
    gradients = config.gradient_compression(None, "none")
    methods: list[Method] = [(for_optimizer(text, at.optimizer), None, None) for text in CODECS.values()]
    averaged = for_optimizer(gradients or "none", at.optimizer)
    interval = for_optimizer(config.interval_text(), at.optimizer)
    methods.append((averaged, interval, config.core_arguments(gradients)[-1]))
    *rows, local = forecasts(model, at, methods)
    dense = rows[0]["step_ns"] / _NS
    found = []
    for (method, text), row in zip(CODECS.items(), rows, strict=True):
        how = _codecs_of(row["tensors"]) if method == AUTO else ""
        found.append(_estimate(method, f"--compression {text}", row, dense, how))
    return [*found, _local(local, model, at, dense)]


def forecasts(model: Model, at: Conditions, methods: list[Method]) -> list[dict[str, Any]]:
    """Returns the predictions of the runtime: sirtaki_forecast_json()."""
    compute = at.compute
    ready = None if compute.ready is None else [round(seconds * _NS) for seconds in compute.ready]
    times = (round(at.latency * _NS), round(compute.forward * _NS), round(compute.backward * _NS))
    link = (at.ranks, round(at.bytes_per_second), *times)
    return json.loads(_core.forecast_json(link, list(model.names), descriptions(model), ready, methods))


def best(found: Sequence[Estimate]) -> Estimate:
    """Returns the fastest setting that follows the link and limits its loss; dense if none gains a tenth."""
    chosen = min((row for row in found if row.method in (AUTO, LOCAL)), key=lambda row: row.seconds)
    return chosen if chosen.speedup >= 1.1 else found[0]


def _estimate(method: str, option: str, row: dict[str, Any], dense: float, how: str) -> Estimate:
    seconds = row["step_ns"] / _NS
    return Estimate(method, option, seconds, row["exposed_ns"] / _NS, row["sent_bytes"], dense / seconds, how)


# Averages of the state of the optimizer block a step, and LocalSgdBase chooses how often.
def _local(row: dict[str, Any], model: Model, at: Conditions, dense: float) -> Estimate:
    option = "--local-updates auto"
    if row["mode"] != "local":
        return _estimate(LOCAL, option, row, dense, f"averages gradients: {row['reason']}")
    cost = at.moments * row["dense_ns"]
    if cost > 0:
        round_ns = row["steps"] * row["step_ns"]
        rounds = rounds_between_averages(row["codec"], affordable_rounds(cost / round_ns))
        steps = rounds * row["steps"]
        row = {
            **row,
            "step_ns": row["step_ns"] + cost / steps,
            "exposed_ns": row["exposed_ns"] + cost / steps,
            "sent_bytes": row["sent_bytes"] + at.moments * 2 * (at.ranks - 1) / at.ranks * 4 * model.parameters / steps,
        }
    how = f"H {row['steps']}, D {row['delay']}, {row['codec']}"
    return _estimate(LOCAL, option, row, dense, how)


def _codecs_of(tensors: list[dict[str, Any]]) -> str:
    """Returns the codecs by the elements that they carry, largest first."""
    elements: dict[str, int] = {}
    for tensor in tensors:
        elements[tensor["codec"]] = elements.get(tensor["codec"], 0) + tensor["numel"]
    total = max(sum(elements.values()), 1)
    parts = sorted(elements.items(), key=lambda item: -item[1])
    return ", ".join(f"{codec} {100 * numel / total:.0f} %" for codec, numel in parts)
