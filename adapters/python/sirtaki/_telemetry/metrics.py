"""Metrics: one flat dict of the runtime, the optimizers and their local updates. It reads and never counts itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sirtaki import basics
from sirtaki._end_report import session
from sirtaki._telemetry.stats_view import bytes_by_codec, links, traffic
from sirtaki._telemetry.totals import Totals

#: Kinds of metrics: a number that only grows, one that goes up and down, a text.
COUNTER, GAUGE, TEXT = "counter", "gauge", "text"

Value = int | float | str


@dataclass(frozen=True)
class Metric:
    """Documentation of a metric. In a name, `{codec}` stands for the name of a codec: one metric for each in use."""

    name: str
    kind: str
    help: str


#: Every metric, in the order of the dict and of docs/metrics.md.
METRICS = (
    Metric("rank", GAUGE, "number of this rank"),
    Metric("size", GAUGE, "number of ranks"),
    Metric("hosts", GAUGE, "number of hosts"),
    Metric("data_path", TEXT, "path of gradients between the ranks"),
    Metric("steps", COUNTER, "steps of all optimizers in this session"),
    Metric("training_seconds", COUNTER, "seconds from the first step of an optimizer, or its making, to its last step"),
    Metric("step_seconds", GAUGE, "mean seconds of a step, in this session"),
    Metric("last_step_seconds", GAUGE, "seconds of the last step"),
    Metric("exposed_seconds", COUNTER, "seconds in which the program only waited for gradients or merges"),
    Metric("exposed_share", GAUGE, "the same as a part of training_seconds, 0 to 1"),
    Metric("last_exposed_seconds", GAUGE, "such seconds in the last step"),
    Metric("gradient_bytes", COUNTER, "bytes of gradients before compression"),
    Metric("wire_bytes", COUNTER, "bytes of gradients after compression, as the size of an allreduce of equal cost"),
    Metric("sent_bytes", COUNTER, "bytes sent to other ranks by network, with everything that is no gradient"),
    Metric("received_bytes", COUNTER, "bytes received from other ranks by network"),
    Metric("codec", TEXT, "codec of most bytes of gradients from the next step on"),
    Metric("codec.{codec}.tensors", GAUGE, "number of tensors with this codec from the next step on"),
    Metric("codec.{codec}.step_bytes", GAUGE, "bytes of these tensors in a step, after compression"),
    Metric("compression_ratio", GAUGE, "bytes of a step before compression, as a multiple of those after it"),
    Metric("plans_adopted", COUNTER, "changes of the plan from measurements"),
    Metric("diverged_tensors", COUNTER, "tensors that were found to differ between ranks of an elastic job"),
    Metric("link_bytes_per_second", GAUGE, "bandwidth of the slowest link, as measured from transfers of gradients"),
    Metric("link_latency_seconds", GAUGE, "latency of the slowest link, as measured"),
    Metric("predicted_step_seconds", GAUGE, "time of a step of the runtime that the plan predicts"),
    Metric("local.mode", TEXT, "local: ranks make steps alone; sync: every step averages gradients"),
    Metric("local.interval", GAUGE, "steps between two merges of the models"),
    Metric("local.delay", GAUGE, "steps that a merge is in flight"),
    Metric("local.reason", TEXT, "reason of the current interval"),
    Metric("local.codec", TEXT, "codec of the differences between models"),
    Metric("local.rounds", COUNTER, "rounds of merges"),
    Metric("local.merges", COUNTER, "merges of a fragment of the model"),
    Metric("local.merges_late", COUNTER, "merges that were late"),
    Metric("local.merges_given_up", COUNTER, "merges that were given up"),
    Metric("local.merged_bytes", COUNTER, "bytes of merged models as float32"),
    Metric("local.divergence", GAUGE, "distance between the models of the ranks at the last merge, relative"),
    Metric("local.alarms", COUNTER, "alarms of all guards"),
)


def pattern_of(name: str) -> re.Pattern[str]:
    """Returns a pattern for the names that `name` stands for; its group is the codec for `{codec}`."""
    return re.compile(re.escape(name).replace(r"\{codec\}", r"(\w+)"))


def metrics(prefix: str = "") -> dict[str, Value]:
    """Returns numbers and texts on this rank by name, as for a logger; docs/metrics.md lists the names.

    Not collective; call it from the thread that steps. The values exist already, and reading them costs more with more
    tensors. A metric without a value is absent: those of local updates without them, those of codecs before the
    first step, those of links before the first measurement.

    Args:
        prefix: begins each name, such as "sirtaki/" for TensorBoard and W&B.

    Raises:
        ValueError: before init().
    """
    found = from_facts(basics.stats(), session.totals_now(), session.local_now())
    return {prefix + name: value for name, value in found.items()}


def from_facts(stats: dict[str, Any], totals: Totals, local: dict[str, Any]) -> dict[str, Value]:
    """Returns the metrics for sirtaki.stats(), the totals of the optimizers and local_stats() of one of them.

    They have the order of METRICS.
    """
    found: dict[str, Value | None] = {
        "rank": stats["rank"],
        "size": stats["size"],
        "hosts": len(stats["ranks_by_host"]),
        "data_path": stats["data_path"],
        **_steps(stats, totals),
        **traffic(stats),
        **_codecs(stats),
        "plans_adopted": stats.get("streams.plans_adopted", 0),
        "diverged_tensors": totals.diverged_tensors,
        **links(stats),
        **_local(local),
    }
    return {name: value for name, value in found.items() if value is not None}


def _steps(stats: dict[str, Any], totals: Totals) -> dict[str, Value | None]:
    if totals.steps == 0:
        # The optimizers of TensorFlow and Keras count no steps; their streams do.
        took, waited = stats.get("streams.step_ns", {}), stats.get("streams.exposed_ns", {})
        return {"steps": stats.get("streams.steps", 0), "exposed_seconds": waited.get("sum", 0) / 1e9} | (
            {"step_seconds": took["mean"] / 1e9} if took.get("count") else {}
        )
    return {
        "steps": totals.steps,
        "training_seconds": totals.seconds,
        "step_seconds": totals.seconds / totals.steps,
        "last_step_seconds": totals.last_step_seconds,
        "exposed_seconds": totals.exposed_seconds,
        "exposed_share": min(1.0, totals.exposed_seconds / max(1e-9, totals.seconds)),
        "last_exposed_seconds": totals.last_exposed_seconds,
    }


def _codecs(stats: dict[str, Any]) -> dict[str, Value | None]:
    codecs = bytes_by_codec(stats)
    found: dict[str, Value | None] = {"codec": next(iter(codecs), None)}
    for part in ("tensors", "step_bytes"):
        found |= {f"codec.{codec}.{part}": sums[part] for codec, sums in sorted(codecs.items())}
    held, sent = (sum(sums[part] for sums in codecs.values()) for part in ("held_bytes", "step_bytes"))
    return found | {"compression_ratio": held / sent if sent else None}


def _local(local: dict[str, Any]) -> dict[str, Value | None]:
    if not local:
        return {}
    names = [metric.name.partition(".")[2] for metric in METRICS if metric.name.startswith("local.")]
    return {f"local.{name}": sum(local[name].values()) if name == "alarms" else local[name] for name in names}
