"""Control messages and virtual time against the number of ranks, in the simulator: with all ranks connected to the
coordinator, and with the tree of relays.

    python -m benchmarks.scale_sim [--quick] [--ranks 64,256,1024]

The simulated ranks run the project's own control, scheduler and engine code; the program is tests/scenarios/scale_sim,
which is built if it is missing. Its time is virtual, so the load of the machine does not matter; samples differ by
seed.

Growth from 64 to 1,024 ranks is reported for every scenario and both topologies; the target of the tree is the growth
of the logarithm. `real_jobs` says if jobs of that size use the topology by default.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import plots
from benchmarks.common.rig import finish, say
from benchmarks.results import RESULTS, ROOT, Row, Store, make_row
from benchmarks.statistics import estimate

RANKS = (16, 64, 256, 1024)
FANOUT = 32
SEEDS, QUICK_SEEDS = 3, 1
BUILD = ROOT / "build" / "release"
PROGRAM = BUILD / "tests" / "scenarios" / "scale_sim"
#: Scenario -> event from which its seconds count.
TIMED = {
    "steady_state": "per step",
    "plan_change": "per step",
    "first_use_name": "first rank's call to last rank's result",
    "first_use_names": "first rank's call to last rank's result",
    "first_use_stream": "first rank's call to last rank's answer",
    "unused_parameter": "the step",
    "late_rank": "the late rank's arrival",
    "dead_rank": "the death",
}
STEPS = {"steady_state": 10, "plan_change": 20}
IDLE_SECONDS = 60.0
#: Numbers of ranks between which messages at the busiest process and time may grow no more than the logarithm.
FEW, MANY = 64, 1024
GROWTH_TARGET = 10.0 / 6.0
NO_MESSAGES = ("steady_state", "plan_change")


def build() -> None:
    """Builds the simulator without output; an error shows the messages of the compiler."""
    for command in (["cmake", "--preset", "release"], ["cmake", "--build", "--preset", "release", "-t", "scale_sim"]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def simulate(ranks: int, fanout: int, seed: int) -> list[dict[str, Any]]:
    """Runs the simulator once; returns one object a scenario."""
    command = [str(PROGRAM), str(ranks), str(fanout), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def busiest(sample: Mapping[str, Any]) -> float:
    """Messages that the busiest process, coordinator or rank, sends and receives, without those of membership."""
    hub = sample["hub_received"] + sample["hub_sent"] - sample["hub_membership"]
    ranks = sample["rank_messages"]
    return float(max(hub, ranks))


def all_messages(sample: Mapping[str, Any]) -> float:
    """Messages that a process has to handle: those of busiest() and those of membership, which all go to the hub."""
    return float(max(sample["hub_received"] + sample["hub_sent"], sample["rank_messages"]))


def _topology(fanout: int, ranks: int) -> dict[str, Any]:
    # The runtime builds the tree by the same rule (control.fanout): when the ranks exceed the fan-out of one relay.
    used = "tree" if ranks > FANOUT else "flat"
    topology = "tree" if fanout else "flat"
    return {"topology": topology, "real_jobs": "yes" if topology == used else "no"}


def _params(scenario: str, ranks: int, fanout: int) -> dict[str, Any]:
    return {"scenario": scenario, **_topology(fanout, ranks), "ranks": ranks, "fanout": fanout or None}


def rows_of(samples: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows of one scenario, number of ranks and topology."""
    first = samples[0]
    scenario, fanout = first["scenario"], first["fanout"]
    params = _params(scenario, first["ranks"], fanout)

    def row(metric: str, values: Iterable[float], unit: str, target: float | None = None) -> Row:
        return make_row(metric, params, estimate(list(values)), unit, "lower", target=target)

    if scenario == "heartbeats":
        return [
            row("membership_rate", (s["hub_membership"] / IDLE_SECONDS for s in samples), "1/s"),
            row("hub_load", (s["hub_busy"] / IDLE_SECONDS for s in samples), "share"),
        ]
    steps = STEPS.get(scenario, 1)
    target = 0.0 if scenario in NO_MESSAGES else None
    rows = [
        row("control_messages", (busiest(s) / steps for s in samples), "messages", target),
        row("rank_messages", (s["rank_messages_median"] / steps for s in samples), "messages", target),
        row("membership_messages", (s["hub_membership"] / steps for s in samples), "messages"),
        row("hub_busy_seconds", (s["hub_busy"] / steps for s in samples), "s"),
    ]
    if scenario in TIMED:
        rows.append(row("virtual_seconds", (s["slowest"] / steps for s in samples), "s"))
        rows.append(row("virtual_seconds_median", (s["median"] / steps for s in samples), "s"))
    return rows


def growth_rows(samples: Mapping[tuple[str, int, int], Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Rows of the messages that the busiest process handles with MANY ranks over those with FEW, and of virtual time.

    A count below one is taken as one, so that no messages at all are no growth.
    """
    rows = []
    for (scenario, ranks, fanout), many in samples.items():
        few = samples.get((scenario, FEW, fanout))
        if ranks != MANY or few is None or scenario == "heartbeats":
            continue
        params = {"scenario": scenario, **_topology(fanout, FEW), "from_ranks": FEW, "to_ranks": MANY}
        target = GROWTH_TARGET if fanout else None
        pairs = list(zip(many, few, strict=True))
        growths = {"message_growth": [max(1.0, all_messages(m)) / max(1.0, all_messages(f)) for m, f in pairs]}
        if scenario in TIMED:
            growths["time_growth"] = [m["slowest"] / f["slowest"] for m, f in pairs]
        for metric, ratios in growths.items():
            rows.append(make_row(metric, params, estimate(ratios), "ratio", "lower", target=target))
    return rows


def main() -> int:
    """Runs all scenarios; returns 0, whatever the verdicts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_sim", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    for name in ("--nets", "--systems"):
        parser.add_argument(name, help="of the other benchmarks; nothing to choose here")
    parser.add_argument("--resume", action="store_true", help="of the other benchmarks; this one starts anew")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for result files")
    arguments = parser.parse_args()
    build()
    command = " ".join(["python", "-m", "benchmarks.scale_sim", *sys.argv[1:]])
    store = Store("scale_sim", command, folder=arguments.results)
    samples: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for ranks in (int(text) for text in arguments.ranks.split(",")):
        for fanout in (0, FANOUT):
            for seed in range(1, 1 + (QUICK_SEEDS if arguments.quick else SEEDS)):
                for sample in simulate(ranks, fanout, seed):
                    samples.setdefault((sample["scenario"], ranks, fanout), []).append(sample)
            say(f"{ranks} ranks, {f'fan-out {fanout}' if fanout else 'flat'}")
    rows = [row for same in samples.values() for row in rows_of(same)] + growth_rows(samples)
    return finish(store, rows, plots.scale_sim)


if __name__ == "__main__":
    sys.exit(main())
