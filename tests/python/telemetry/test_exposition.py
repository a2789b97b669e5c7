"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from prometheus_text import of, parsed

from sirtaki._telemetry.exposition import exposition
from sirtaki._telemetry.metrics import COUNTER, METRICS, TEXT


def test_the_text_has_every_metric_of_every_rank() -> None:
    values = {m.name.replace("{codec}", "int8"): "text" if m.kind == TEXT else 1.5 for m in METRICS}
    values |= {"codec.twobit.step_bytes": 7, "local.reason": 'a "b" \\ c\nd'}
    found = parsed(exposition([(0, "a"), (1, "a"), (2, "b")], {0: values, 1: values}))
    assert found["sirtaki_up"] == {of(0): 1, of(1): 1, of(2, "b"): 0}
    names = {m.name.replace(".{codec}", "").replace(".", "_"): m.kind for m in METRICS if m.kind != TEXT}
    del names["rank"]
    expected = {f"sirtaki_{name}{'_total' if kind == COUNTER else ''}" for name, kind in names.items()}
    assert found.keys() == expected | {"sirtaki_up", "sirtaki_info"}
    assert found["sirtaki_codec_step_bytes"] == {
        (("codec", codec), *of(rank)): value for rank in (0, 1) for codec, value in (("int8", 1.5), ("twobit", 7))
    }
    info = dict(next(iter(found["sirtaki_info"])))
    assert info["local_reason"] == r"a \"b\" \\ c\nd"
    assert info["data_path"] == "text"


def test_without_an_answer_only_the_state_is_shown() -> None:
    assert parsed(exposition([(0, "a")], {})) == {"sirtaki_up": {of(0): 0}}
