"""The dashboard for Grafana reads metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_text import parsed

from sirtaki._telemetry.exposition import exposition
from sirtaki._telemetry.metrics import METRICS, TEXT

DASHBOARD = Path(__file__).resolve().parents[3] / "docs/grafana.json"


def test_the_dashboard_reads_metrics_that_exist() -> None:
    text = DASHBOARD.read_text()
    panels = json.loads(text)["panels"]
    used = set(re.findall(r"sirtaki_\w+", text))
    values = {m.name.replace("{codec}", "int8"): "text" if m.kind == TEXT else 1 for m in METRICS}
    assert used <= parsed(exposition([(0, "a")], {0: values})).keys()
    assert len(used) > 12
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(places)
