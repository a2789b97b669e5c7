"""Plain loops of several kinds over a loss: residuals, GradScaler, accumulation, closures."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import launch, warm

STEPS = 8
LOST_AT = 4
# The gradient of each rank consists of integers, and ranks sum them, so every number is exact. Slot 1 is killed at the
# place that the first argument names, in step 4. Each step prints the values of the rank behind it.
TRAIN = f"""
import json, os, signal, sys
import torch
import sirtaki.torch as hvd

place, kind = sys.argv[1], sys.argv[2]
slot = int(os.environ["SIRTAKI_JOB_RANK"])
torch.set_num_threads(1)
hvd.init()
weight = torch.nn.Parameter(torch.zeros(8, 64))
compression = {{
    "residuals": "group_topk:rate=0.1,group=8,min=0", "momentum": "group_topk:rate=0.1,group=8,min=0,momentum=0.5"
}}.get(kind, "none")
passes = 2 if kind == "passes" else 1
if kind == "closure":
    optimizer = torch.optim.Adam([weight], 0.5)
elif kind == "momentum":
    optimizer = torch.optim.SGD([weight], 1.0, momentum=0.5)
else:
    optimizer = torch.optim.SGD([weight], 1.0)
optimizer = hvd.DistributedOptimizer(
    optimizer, [("weight", weight)], op=hvd.Sum, compression=compression, backward_passes_per_step=passes
)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
step = 0

def fault(name):
    if (slot, step, name) == (1, {LOST_AT}, place):
        os.kill(os.getpid(), signal.SIGKILL)

def gradient():
    return torch.arange(512.0).mul(7 * step + 5 * slot + 3).remainder(23).view(8, 64) - 11

def loss():
    return (weight * gradient()).sum()

def closure():
    optimizer.zero_grad()
    value = loss()
    value.backward()
    return value

for step in range({STEPS}):
    fault("before")
    if kind in ("closure", "momentum"):
        returned = optimizer.step(closure)
        assert returned is not None and returned.shape == ()
    else:
        optimizer.zero_grad()
        for turn in range(passes):
            fault(f"pass {{turn}}")
            value = loss()
            (scaler.scale(value) if kind == "scaler" else value).backward()
        if kind == "scaler":
            scaler.step(optimizer)
            scaler.update()
        elif kind == "clip":
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_([weight], 50.0)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    owed = (optimizer.state_dict().get("sirtaki") or {{"owed": {{}}}})["owed"].get("weight", torch.zeros(512))
    seen = {{
        "committed": optimizer.committed,
        "weight": weight.detach().flatten().tolist(),
        "gradient": gradient().flatten().tolist(),
        "owed": owed.flatten().tolist(),
        "scale": [scaler.get_scale(), scaler._get_growth_tracker()],
    }}
    print("STEP", slot, step, json.dumps(seen), flush=True)
    fault("behind")
print("DONE", slot, hvd.size(), flush=True)
hvd.shutdown()
"""
Row = dict[str, Any]


def rows_of(place: str, kind: str) -> list[list[Row]]:
    """Trains on 3 ranks, and returns the rows that each rank has printed."""
    done = launch("-np", "3", "--elastic", "1:", *warm("-c", TRAIN, place, kind), timeout=120)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    assert sorted(re.findall(r"DONE (\d) 2", done.out)) == ["0", "2"], text
    rows = [[json.loads(seen) for seen in re.findall(rf"STEP {slot} \d+ (.*)", done.out)] for slot in range(3)]
    assert len(rows[0]) == len(rows[2]) == STEPS, text
    assert len(rows[1]) == LOST_AT + (place == "behind"), text
    for mine, other in zip(rows[0], rows[2], strict=True):
        assert all(mine[key] == other[key] for key in ("committed", "weight", "scale")), text
    # One step at most is void, and changes nothing; any other step does.
    assert sum(not row["committed"] for row in rows[0]) <= 1, text
    for before, after in itertools.pairwise(rows[0]):
        assert after["committed"] == (after["weight"] != before["weight"]), text
    return rows


def sum_of(vectors: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*vectors, strict=True)]


def check_sums(rows: list[list[Row]], steps: range, passes: int = 1) -> None:
    """Fails unless each step has moved the weight by all that its ranks have computed and owe no more."""
    nothing = {"weight": [0.0] * 512, "owed": [0.0] * 512}
    for step in steps:
        now = [own[step] for own in rows if step < len(own)]
        before = [own[step - 1] if step > 0 else nothing for own in rows if step < len(own)]
        if not now[0]["committed"]:
            assert [row["owed"] for row in now] == [row["owed"] for row in before], step
            continue
        moved = [old - new for old, new in zip(before[0]["weight"], now[0]["weight"], strict=True)]
        owed = sum_of([row["owed"] for row in now])
        given = sum_of([row["gradient"] for row in now for _ in range(passes)] + [row["owed"] for row in before])
        assert moved == [all_of - later for all_of, later in zip(given, owed, strict=True)], step


@pytest.mark.parametrize("place", ["before", "behind"])
def test_residuals_of_survivors_are_kept_to_the_last_bit(place: str) -> None:
    rows = rows_of(place, "residuals")
    assert all(any(row["owed"]) for own in rows for row in own)
    check_sums(rows, range(STEPS))


def test_a_grad_scaler_keeps_the_same_scale_on_all_survivors() -> None:
    rows = rows_of("before", "scaler")
    check_sums(rows, range(STEPS))
    assert rows[0][-1]["scale"][0] > 8.0


@pytest.mark.parametrize("place", ["pass 0", "pass 1"])
def test_a_rank_is_lost_between_the_passes_of_a_step(place: str) -> None:
    check_sums(rows_of(place, "passes"), range(STEPS), passes=2)


def test_clipping_before_step_bears_a_void_step() -> None:
    rows_of("before", "clip")


@pytest.mark.parametrize("kind", ["closure", "momentum"])
def test_a_step_with_a_closure_may_be_void(kind: str) -> None:
    rows = rows_of("before", kind)
    assert [step for step, row in enumerate(rows[0]) if not row["committed"]] == [LOST_AT]
