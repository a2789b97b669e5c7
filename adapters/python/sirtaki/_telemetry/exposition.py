"""Metrics in the text format of Prometheus (version 0.0.4), those of all ranks in one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sirtaki._telemetry.metrics import COUNTER, METRICS, TEXT, Metric, Value, pattern_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Metrics that are labels.
_LABELS = ("rank",)


def exposition(ranks: Sequence[tuple[int, str]], found: Mapping[int, Mapping[str, Value]]) -> str:
    """Returns the metrics of a job.

    Args:
        ranks: number and host of every rank.
        found: sirtaki.metrics() by rank; a rank without an entry has not answered.
    """
    up = [({"rank": str(rank), "host": host}, int(rank in found)) for rank, host in ranks]
    lines = _family("sirtaki_up", "gauge", "1 if the rank has answered", up)
    answered = [(rank, host, found[rank]) for rank, host in ranks if rank in found]
    texts = [metric for metric in METRICS if metric.kind == TEXT]
    infos = []
    for rank, host, values in answered:
        known = {prometheus_name(m.name): str(values[m.name]) for m in texts if m.name in values}
        infos.append(({"rank": str(rank), "host": host, **known}, 1))
    lines += _family("sirtaki_info", "gauge", "1; the labels are the texts", infos)
    for metric in METRICS:
        if metric.kind != TEXT and metric.name not in _LABELS:
            name = f"sirtaki_{prometheus_name(metric.name)}{'_total' if metric.kind == COUNTER else ''}"
            samples = [sample for rank, host, values in answered for sample in _samples(metric, rank, host, values)]
            lines += _family(name, metric.kind, metric.help, samples)
    return "".join(f"{line}\n" for line in lines)


def prometheus_name(name: str) -> str:
    """Returns the name of a metric, without prefix and suffix: `codec.{codec}.tensors` is codec_tensors."""
    return name.replace(".{codec}", "").replace(".", "_")


Sample = tuple[dict[str, str], Value]


def _samples(metric: Metric, rank: int, host: str, values: Mapping[str, Value]) -> list[Sample]:
    labels = {"rank": str(rank), "host": host}
    if "{codec}" not in metric.name:
        return [(labels, values[metric.name])] if metric.name in values else []
    pattern = pattern_of(metric.name)
    matches = ((pattern.fullmatch(name), value) for name, value in values.items())
    return [({**labels, "codec": match[1]}, value) for match, value in matches if match]


def _family(name: str, kind: str, text: str, samples: Sequence[Sample]) -> list[str]:
    if not samples:
        return []
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}", *(_line(name, *sample) for sample in samples)]


def _line(name: str, labels: Mapping[str, str], value: Value) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
