"""Pictures of one training step from a trace: when each partition was ready, queued, on the wire and needed.

    python -m benchmarks.trace_plot TRACE.json PICTURE.svg                      # a trace you have, rank 0
    python -m benchmarks.trace_plot --model vgg19 --ratio 1 --folder docs/pictures   # paced steps on 200 Mbit/s

The second form runs the steps of benchmarks.overlap under each way of waiting (sync="backward" and "forward"), as root.
In the picture time runs to the right. The lane on top is the program: the layers of backward and forward that the
program marks (paced steps do), with gaps where it waits. Below is one line a partition in the order of the plan: pale
while the partition waits for its turn, dark while it is on the wire, and a mark where the program needs it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import plots, rig
from benchmarks.common.group import Group
from benchmarks.overlap import BACKWARD, FORWARD, NETS, RANKS, WARM_STEPS, Case

#: Marks of the paced model: "backward NAME", "forward NAME".
PASSES = ("backward", "forward")
_STAGES = {"queue": "queued", "network": "wire", "need": "needed"}
_FLUSHED = 4.0  # seconds until all ranks have sent their spans, after stop_timeline()


@dataclass
class PartitionTimes:
    """One partition in one step; seconds from the start of the picture."""

    position: int
    name: str
    queued: tuple[float, float] | None = None
    wire: tuple[float, float] | None = None
    needed: float | None = None


@dataclass
class StepTimes:
    """One step: from the first layer of the backward pass to the end of the next forward pass."""

    compute: list[tuple[str, float, float]] = field(default_factory=list)  # mark, begin, end
    partitions: list[PartitionTimes] = field(default_factory=list)
    seconds: float = 0.0


def rank_events(trace: Sequence[Mapping[str, Any]], rank: int) -> list[Mapping[str, Any]]:
    """Returns the spans of one rank in the order of their begins."""
    spans = [event for event in trace if event.get("ph") == "X" and event.get("pid") == rank]
    return sorted(spans, key=lambda event: float(event["ts"]))


def steps_of(spans: Sequence[Mapping[str, Any]]) -> list[StepTimes]:
    """Returns the steps that the marks of backward delimit; the last step, which is cut off, is left out."""
    marks = [span for span in spans if span["cat"] == "user" and span["name"].split(" ")[0] in PASSES]
    borders = [
        float(span["ts"])
        for before, span in zip([None, *marks], marks, strict=False)
        if span["name"].startswith("backward") and (before is None or before["name"].startswith("forward"))
    ]
    return [_step(spans, begin, end) for begin, end in pairwise(borders)]


def _step(spans: Sequence[Mapping[str, Any]], begin: float, end: float) -> StepTimes:
    step = StepTimes(seconds=(end - begin) * 1e-6)
    partitions: dict[int, PartitionTimes] = {}
    for span in spans:
        first = (float(span["ts"]) - begin) * 1e-6
        if not 0 <= first < step.seconds:
            continue
        last = first + float(span["dur"]) * 1e-6
        if span["cat"] == "user":
            step.compute.append((span["name"], first, last))
        elif span["cat"] in _STAGES and "position" in span["args"]:
            position = int(span["args"]["position"])
            partition = partitions.setdefault(position, PartitionTimes(position, span["name"]))
            stage = _STAGES[span["cat"]]
            if stage == "wire":
                partition.name = span["name"].partition(": ")[2] or span["name"]
            if stage == "needed":
                partition.needed = last if partition.needed is None else min(partition.needed, last)
            else:
                setattr(partition, stage, (first, last))
    step.partitions = [partitions[position] for position in sorted(partitions)]
    return step


def draw(step: StepTimes, title: str, path: Path) -> Path | None:
    """Writes the picture; returns None if matplotlib is missing."""
    made = plots.canvas(9.0, 1.6 + 0.16 * min(60, len(step.partitions)))
    if made is None:
        return None
    figure, axis = made
    lines = len(step.partitions)
    lane = max(1.0, lines / 12)
    for mark, begin, end in step.compute:
        color = "#7fa6c9" if mark.startswith("backward") else "#9ccf8f"
        axis.barh(-lane, 1e3 * (end - begin), left=1e3 * begin, height=0.9 * lane, color=color, linewidth=0)
    for line, partition in enumerate(step.partitions):
        for span, color in ((partition.queued, "#f0d9a8"), (partition.wire, "#b5651d")):
            if span is not None:
                axis.barh(line, 1e3 * (span[1] - span[0]), left=1e3 * span[0], height=0.8, color=color, linewidth=0)
    needed = [(1e3 * p.needed, line) for line, p in enumerate(step.partitions) if p.needed is not None]
    if needed:
        axis.scatter(*zip(*needed, strict=True), marker="|", s=28, color="black", linewidths=1.2, zorder=3)
    shown = range(0, lines, max(1, -(-lines // 40)))
    axis.set_yticks([-lane, *shown], ["program", *(step.partitions[line].name for line in shown)], fontsize=5)
    axis.set(title=title, xlabel="ms", xlim=(0, 1e3 * step.seconds), ylim=(lines, -2 * lane))
    return plots.save(figure, path)


# ---- paced steps ---------------------------------------------------------------------------


def record(case: Case, folder: Path) -> list[Path]:
    """Runs the case with each way of waiting, and draws its pictures."""
    drawn = []
    systems = [BACKWARD, FORWARD]
    with rig.network(case.net, case.size, strict=False) as net, Group(case.size, systems, net=net) as group:
        for system in systems:
            sync = "forward" if system == FORWARD else "backward"
            group.call("training_calibrate", recipe=case.recipe())
            group.call("training_prepare", system=system, recipe=case.recipe())
            group.call("training_warm", system=system, steps=WARM_STEPS[system])
            with tempfile.TemporaryDirectory(prefix="bench-trace-") as temporary:
                trace = Path(temporary) / "trace.json"
                group.call("training_trace", system=system, path=str(trace), steps=4)
                time.sleep(_FLUSHED)
                steps = steps_of(rank_events(json.loads(trace.read_text()), 0))
            group.call("training_drop")
            step = steps[-1]
            share = f"communication {case.ratio:g} of compute"
            title = f'{case.model_name}, sync="{sync}", {share}: {step.seconds * 1e3:.0f} ms'
            path = draw(step, title, folder / f"{case.model_name}_{case.ratio:g}_{sync}.svg")
            drawn += [] if path is None else [path]
    return drawn


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace_plot", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="TRACE.json PICTURE.svg")
    parser.add_argument("--model", default="vgg19")
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path("docs/pictures"))
    arguments = parser.parse_args()
    if len(arguments.files) not in (0, 2):
        parser.error("give a trace and a picture, or neither")
    if arguments.files:
        trace, picture = arguments.files
        steps = steps_of(rank_events(json.loads(trace.read_text()), 0))
        if not steps:
            parser.error(f'{trace}: no step found; the program must mark its layers "backward NAME" and "forward NAME"')
        print(draw(steps[-1], trace.name, picture))
        return 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        for path in record(Case(NETS[0], RANKS[0], arguments.model, arguments.ratio), arguments.folder):
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(rig.run(main))
