"""Contents of run files for tests of pages: a long training with everything, and the least that there can be."""

from __future__ import annotations

import random
from typing import Any

CODECS = ("none", "int8", "twobit")


def _layer(number: int, codec: str) -> dict[str, Any]:
    held, ratio = 4000 * (number + 1), {"none": 1, "int8": 4, "twobit": 15}[codec]
    more = {"numel": held // 4, "recipe": "scatter", "wire_bytes": held // ratio, "ratio": float(ratio)}
    return {"name": f"layer{number}.<weight>", "codec": codec, "held_bytes": held, "reason": "auto: a & b", **more}


def full(seed: int, steps: int = 400) -> dict[str, Any]:
    """Returns a run of three ranks on two hosts with compression, links and local updates."""
    rng = random.Random(seed)
    samples, readings = [], []
    for step in range(1, steps + 1):
        seconds = 0.02 + 0.004 * rng.random() + (3.0 if step == 1 else 0.0)
        point = {"step": step * 4, "steps": 4, "seconds": 4 * seconds, "longest_seconds": seconds * 1.3}
        samples.append({**point, "exposed_seconds": 4 * seconds * (0.5 if step < 100 else 0.1)})
        codec = CODECS[min(2, step // 130)]
        sent = {"none": 1_600_000, "int8": 400_000, "twobit": 110_000}[codec]
        before = readings[-1] if readings else {"gradient_bytes": 0, "wire_bytes": 0, "sent_bytes": 0}
        row = {
            "seconds": 0.1 * step,
            "steps": step * 4,
            "gradient_bytes": before["gradient_bytes"] + 4 * 1_600_000,
            "wire_bytes": before["wire_bytes"] + 4 * sent,
            "sent_bytes": before["sent_bytes"] + int(4.1 * sent),
            "codecs": {"none": 20_000, codec: sent},
            "link_bytes_per_second": 12.5e6 * (1 + 0.1 * rng.random()) if step > 8 else None,
            "link_latency_seconds": 3e-4 if step > 8 else None,
        }
        if step > 200:
            local = {"mode": "local", "interval": 8 + step // 40, "delay": 2, "rounds": step // 8}
            row["local"] = {**local, "divergence": 0.02 + 0.01 * rng.random()}
        readings.append(row)
    layers = [_layer(i, CODECS[i % 3]) for i in range(70)]
    decision = {"step": 32, "reason": "codecs", "measured_us": 20_000, "predicted_us": 9_000, "policy": "auto: int8"}
    peer = {"connected": True, "messages_sent": 9, "bytes_sent": 48_000_000, "bytes_received": 47_000_000}
    optimizer = {"name": "SGD", "steps": 4 * steps, "samples": samples, "layers": layers, "local": {}}
    return {
        "program": "train <tiny>.py",
        "began": "2030-01-01T00:00:00+00:00",
        "ended": "2030-01-01T00:10:00+00:00",
        "ended_by": "KeyboardInterrupt",
        "sirtaki": "0.1.0",
        "report": "  steps  1600\n  \x1b[0m & more\n",
        "metrics": {
            **{"size": 3, "steps": 4 * steps, "step_seconds": 0.022, "exposed_share": 0.21, "data_path": "TCP"},
            **{"gradient_bytes": 2_560_000_000, "wire_bytes": 800_000_000, "link_bytes_per_second": 12_600_000},
            **{"link_latency_seconds": 3e-4, "local.interval": 17, "local.mode": "local"},
        },
        "members": [{"rank": rank, "hostname": f"node{rank % 2}", "host_id": f"h{rank % 2}"} for rank in range(3)],
        "options": {"compression.codec": "auto", "report.file": "run.json"},
        "optimizers": [{**optimizer, "seconds": 35.2, "exposed_seconds": 7.4}],
        "readings": readings,
        "stats": {"peers": [{"peer": 1, **peer}, {"peer": 2, **peer}], "tensors": {}, "decisions": {"o.0": [decision]}},
    }


def least() -> dict[str, Any]:
    """Returns a run of one rank that made no step."""
    metrics = {"size": 1, "steps": 0, "data_path": "local", "gradient_bytes": 0, "wire_bytes": 0}
    times = {"began": "2030-01-01T00:00:00+00:00", "ended": "2030-01-01T00:00:00+00:00", "ended_by": ""}
    return {
        **times,
        "program": "",
        "sirtaki": "0.1.0",
        "report": "",
        "metrics": metrics,
        "members": [{"rank": 0, "hostname": "node0", "host_id": "h0"}],
        "options": {},
        "optimizers": [],
        "readings": [],
        "stats": {"peers": [], "tensors": {}},
    }
