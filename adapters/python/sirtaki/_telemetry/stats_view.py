"""Parts of sirtaki.stats() as metrics, readings and pages show them."""

from __future__ import annotations

from typing import Any

Stats = dict[str, Any]


def bytes_by_codec(stats: Stats) -> dict[str, dict[str, int]]:
    """Returns tensors, held_bytes and step_bytes for each codec of the next step, the one of most held bytes first."""
    found: dict[str, dict[str, int]] = {}
    for rows in stats["tensors"].values():
        for row in rows:
            codec = found.setdefault(row["codec"], {"tensors": 0, "held_bytes": 0, "step_bytes": 0})
            codec["tensors"] += 1
            codec["held_bytes"] += row["held_bytes"]
            codec["step_bytes"] += row["wire_bytes"]
    return dict(sorted(found.items(), key=lambda item: (-item[1]["held_bytes"], item[0])))


def traffic(stats: Stats) -> dict[str, int]:
    """Returns the bytes of gradients before and after compression, and of everything sent to and from other ranks."""
    return {
        "gradient_bytes": stats.get("streams.raw_bytes", 0),
        "wire_bytes": stats.get("streams.wire_bytes", 0),
        "sent_bytes": sum(peer["bytes_sent"] for peer in stats["peers"]),
        "received_bytes": sum(peer["bytes_received"] for peer in stats["peers"]),
    }


def links(stats: Stats) -> dict[str, float | None]:
    """Returns bandwidth and latency of the slowest link and the predicted step, each None without a measurement."""

    def measured(end: str) -> list[int]:
        # A stream that is closed keeps its values.
        found = (level["value"] for name, level in stats.items() if name.startswith("streams.") and name.endswith(end))
        return [value for value in found if value > 0]

    bandwidths, latencies = measured(".link_bytes_per_second"), measured(".link_latency_ns")
    steps = measured(".predicted_step_us")
    return {
        "link_bytes_per_second": min(bandwidths) if bandwidths else None,
        "link_latency_seconds": max(latencies) / 1e9 if latencies else None,
        "predicted_step_seconds": sum(steps) / 1e6 if steps else None,
    }
