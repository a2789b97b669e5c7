"""Operations by name between the steps of plain loops: ranks are killed around them, and survivors make them again."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import Outcome, launch, warm

STEPS = 6
# A fault "slot:step:place" kills the rank: before the operation of the step, where it holds the result ("held"), behind
# it, in the backward that follows, or while the survivors agree. With "late" the rank learns of a loss at the end of
# the operation; a rank that "tells" then opens a named pipe behind the operation, and the first one to be killed waits
# for that. The operation is between backward() and step() if the third argument says so. With "objects" the
# session begins before sirtaki.torch is imported.
TRAIN = f"""
import hashlib, json, os, signal, sys
import torch
import sirtaki
if sys.argv[2] == "objects":
    sirtaki.init()
import sirtaki.torch as hvd
from sirtaki.torch._adapter import torch_ops

faults, kind, place_of_operation, gate = set(sys.argv[1].split(",")), *sys.argv[2:]
slot = int(os.environ["SIRTAKI_JOB_RANK"])
torch.set_num_threads(1)
hvd.init()
start_one = torch_ops.start_one
step = -1

def fault(place):
    if f"{{slot}}:{{step}}:{{place}}" in faults:
        if gate and place != "agree":
            open(gate).close()
        os.kill(os.getpid(), signal.SIGKILL)

def start_one_or_die(submission, priority=0):
    name = submission[0][1]
    if name == "sirtaki.survivors":
        fault("agree")
    if name == "sirtaki.operation":
        fault("held")
        late = f"{{slot}}:{{step}}:late"
        if late in faults:
            faults.remove(late)
            start_one(submission, priority).wait()
            return start_one(torch_ops.barrier("only here"))
    return start_one(submission, priority)

torch_ops.start_one = start_one_or_die

def operation():
    mine = torch.full((3,), float(2**slot))
    if kind == "allreduce":
        return hvd.allreduce(mine, name="metric", op=hvd.Sum).tolist()
    if kind == "in place":
        assert hvd.allreduce_(mine, op=hvd.Sum) is mine
        return mine.tolist()
    if kind == "gathered":
        return hvd.allgather(mine[: slot + 1]).tolist()
    if kind == "objects":
        return hvd.allgather_object({{"slot": slot, "step": step}})
    if kind == "object":
        return hvd.broadcast_object([slot, step], root_rank=0)
    if kind == "from the last":
        return hvd.broadcast_object(slot, root_rank=hvd.size() - 1)
    hvd.barrier()
    return None

def broadcast(model):
    fault("before")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    fault("behind")

torch.manual_seed(slot)
model = torch.nn.Linear(8, 4)
broadcast(model)
inner = torch.optim.SGD(model.parameters(), 0.01 * (slot + 1), momentum=0.9)
hvd.broadcast_optimizer_state(inner, root_rank=0)
optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sync="step" if place_of_operation else "backward")
model.weight.register_hook(lambda grad: fault("backward"))

def digest():
    parts = [*model.state_dict().values(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]

def measure():
    fault("before")
    result = operation()
    if f"{{slot}}:{{step}}:tells" in faults:
        open(gate, "w").close()
    fault("behind")
    return result

for step in range({STEPS}):
    result = None if place_of_operation else measure()
    optimizer.zero_grad()
    model(torch.full((2, 8), slot + step + 1.0)).square().mean().backward()
    result = measure() if place_of_operation else result
    optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    print("STEP", slot, json.dumps([result, optimizer.committed, digest(), rate]), flush=True)
print("DONE", slot, hvd.size(), flush=True)
hvd.shutdown()
"""
EVERYWHERE = ["allreduce", "in place", "gathered", "objects", "object", "barrier"]


def run(np: int, faults: str, kind: str, *, between: bool = False) -> tuple[Outcome, str]:
    with tempfile.TemporaryDirectory() as folder:
        gate = f"{folder}/gate" if "tells" in faults else ""
        if gate:
            os.mkfifo(gate)
        command = warm("-c", TRAIN, faults, kind, "between" if between else "", gate)
        done = launch("-np", str(np), "--elastic", "1:", *command, timeout=120)
    return done, f"{done.out}\n{done.err}"


def rows_of(np: int, faults: str, kind: str, *, between: bool = False) -> list[list[Any]]:
    """Returns a row for each step, the same on all survivors: result, committed, digest, learning rate."""
    done, text = run(np, faults, kind, between=between)
    assert done.code == 0, text
    killed = {int(fault[0]) for fault in faults.split(",") if not fault.endswith(("late", "tells"))}
    survivors = sorted(set(range(np)) - killed)
    ends = re.findall(r"DONE (\d) (\d)", done.out)
    assert sorted(ends) == [(str(slot), str(len(survivors))) for slot in survivors], text
    seen = [[json.loads(row) for row in re.findall(rf"STEP {slot} (.*)", done.out)] for slot in survivors]
    assert len(seen[0]) == STEPS, text
    assert all(rows == seen[0] for rows in seen), text
    assert sum(not row[1] for row in seen[0]) <= len(killed), text
    return seen[0]


def result_of(kind: str, slots: set[int], step: int) -> Any:
    """Returns the result of the operation among these slots."""
    ordered = sorted(slots)
    return {
        "allreduce": [float(sum(2**slot for slot in ordered))] * 3,
        "in place": [float(sum(2**slot for slot in ordered))] * 3,
        "gathered": [float(2**slot) for slot in ordered for _ in range(slot + 1)],
        "objects": [{"slot": slot, "step": step} for slot in ordered],
        "object": [ordered[0], step],
        "barrier": None,
    }[kind]


def check_results(rows: list[list[Any]], kind: str, at: int, before: set[int], behind: set[int]) -> None:
    """Fails unless the ranks `before` took part in operations before step `at`, and `behind` in those from it on."""
    expected = [result_of(kind, before if step < at else behind, step) for step in range(STEPS)]
    assert [row[0] for row in rows] == expected


@pytest.mark.parametrize("place", ["before", "held"])
@pytest.mark.parametrize("kind", EVERYWHERE)
def test_survivors_make_an_operation_again(kind: str, place: str) -> None:
    rows = rows_of(3, f"1:2:{place}", kind)
    check_results(rows, kind, 2, {0, 1, 2}, {0, 2})
    assert all(row[1] for row in rows)  # nothing was in flight


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_is_lost_behind_an_operation(victim: int) -> None:
    rows = rows_of(3, f"{victim}:2:behind", "allreduce")
    left = {0, 1, 2} - {victim}
    whole = result_of("allreduce", {0, 1, 2}, 2)
    assert [row[0] for row in rows[:2]] == [whole] * 2
    # The survivors either know the end of the operation or make it again.
    assert rows[2][0] in (whole, result_of("allreduce", left, 2))
    assert [row[0] for row in rows[3:]] == [result_of("allreduce", left, 3)] * (STEPS - 3)


@pytest.mark.parametrize("kind", ["allreduce", "in place", "objects"])
def test_an_operation_that_a_survivor_has_passed_counts(kind: str) -> None:
    # Rank 0 learns of the loss at the end of the operation, rank 1 in the backward behind it.
    rows = rows_of(3, "0:2:late,1:2:tells,2:2:behind", kind)
    check_results(rows, kind, 3, {0, 1, 2}, {0, 1})


def test_a_rank_that_is_late_leaves_out_the_step_behind_the_operation() -> None:
    rows = rows_of(3, "0:2:late,1:2:tells,2:2:backward", "allreduce")
    check_results(rows, "allreduce", 3, {0, 1, 2}, {0, 1})
    assert [step for step, row in enumerate(rows) if not row[1]] == [2]


@pytest.mark.parametrize(
    "faults",
    ["3:2:before,2:2:held", "3:2:held,2:2:agree", "3:2:before,2:3:before", "3:2:before,2:2:before"],
)
def test_two_losses_in_a_row(faults: str) -> None:
    rows = rows_of(4, faults, "allreduce")
    whole, left = {0, 1, 2, 3}, {0, 1}
    assert [row[0] for row in rows[:2]] == [result_of("allreduce", whole, 0)] * 2
    assert [row[0] for row in rows[3:]] == [result_of("allreduce", left, 3)] * 3
    assert rows[2][0] == result_of("allreduce", {0, 1, 2} if "2:3" in faults else left, 2)


def test_a_second_loss_does_not_turn_around_what_counts() -> None:
    rows = rows_of(4, "0:2:late,1:2:tells,3:2:behind,2:2:agree", "allreduce")
    check_results(rows, "allreduce", 3, {0, 1, 2, 3}, {0, 1})


@pytest.mark.parametrize("fault", ["1:2:before", "1:2:held", "2:2:behind", "0:2:late,1:2:tells,2:2:behind"])
def test_an_operation_between_backward_and_step(fault: str) -> None:
    rows = rows_of(3, fault, "allreduce", between=True)
    left = {0, 1} if "2:2" in fault else {0, 2}
    assert [row[0] for row in rows[:2]] == [result_of("allreduce", {0, 1, 2}, 0)] * 2
    assert [row[0] for row in rows[3:]] == [result_of("allreduce", left, 3)] * 3


@pytest.mark.parametrize("place", ["before", "held", "behind"])
def test_parameters_are_broadcast_again(place: str) -> None:
    rows = rows_of(3, f"2:-1:{place}", "allreduce")
    check_results(rows, "allreduce", 0, set(), {0, 1})
    assert all(row[1] and row[3] == 0.01 for row in rows)


@pytest.mark.parametrize(("kind", "root"), [("object", 0), ("from the last", 2)])
def test_a_broadcast_whose_root_is_lost_is_an_error_everywhere(kind: str, root: int) -> None:
    done, text = run(3, f"{root}:2:before", kind)
    assert done.code != 0, text
    told = re.findall(r"^\[(\d)!\] .*RanksChangedError: the root of a broadcast was lost", done.err, re.MULTILINE)
    assert sorted(told) == sorted({"0", "1", "2"} - {str(root)}), text
