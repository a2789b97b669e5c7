"""Local updates in elastic jobs under sirtakirun: ranks are lost, leave and come back between and during merges."""

from __future__ import annotations

import re
import sys
from fractions import Fraction
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import Outcome, launch, warm

STEPS = 12
# A fault "slot:start:place" kills that process of the slot before the step `place`, or when it has begun to drain, and
# "slot:start:place:leave" sends it SIGTERM. Each rank compares models, and the mean of those of the survivors, as they
# came back to a commit, with the model that sync() has made. The program goes on until `full` ranks are there. With the
# guard, steps may become synchronous while a rank is started, and then sync() takes the buffers of rank 0.
TRAIN = f"""
import os, signal, sys, threading
from pathlib import Path
import torch
import sirtaki.torch as hvd

how, faults, full, folder = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[4])
slot = int(os.environ["SIRTAKI_JOB_RANK"])
start = len(list(folder.glob(f"{{slot}}.*"))) + 1
(folder / f"{{slot}}.{{start}}").touch()
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(10 * slot + start)
local = {{
    "at once": hvd.LocalUpdates("fixed:steps=4,delay=0,guard=off", outer="none"),
    "delay": hvd.LocalUpdates("fixed:steps=4,delay=3,guard=off"),
    "fragments": hvd.LocalUpdates("fixed:steps=5,delay=2,guard=off", fragments=3, optimizer_state=1),
    "codec": hvd.LocalUpdates(
        "fixed:steps=4,delay=2,guard=off", compression="int8:min=0,ndim=0", outer=hvd.Outer(0.7, 0.9)
    ),
    "auto": "auto",
    "auto with merges": "auto:warmup=2,gain=0",
    "warm-up": hvd.LocalUpdates("fixed:steps=2,delay=0,warmup=6,guard=off", outer="none"),
}}[how]
model = torch.nn.Sequential(
    torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)
)
if how == "fragments":
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
else:
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), local_updates=local)
state = hvd.elastic.TorchState(model, optimizer, step=0, first=None)
pace, back = threading.Event(), []

def fault(place):
    if f"{{slot}}:{{start}}:{{place}}" in faults:
        os.kill(os.getpid(), signal.SIGKILL)
    if f"{{slot}}:{{start}}:{{place}}:leave" in faults:
        os.kill(os.getpid(), signal.SIGTERM)

def values():
    tensors = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    return torch.cat([t.detach().flatten() for t in tensors])

def loss_of(step, rank):
    points = torch.randn(16, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    return (model(points) - points[:, :1].sin()).square().mean()

state.register_reset_callbacks([lambda: back.append(values())])

@hvd.elastic.run
def train(state):
    others = hvd.allgather_object((values(), back[-1] if back else None))
    assert all(torch.equal(mine, others[0][0]) for mine, _ in others), "models differ"
    kept = [before for _, before in others if before is not None]
    if kept and "auto" not in how:
        torch.testing.assert_close(others[0][0], torch.stack(kept).mean(0), rtol=1e-5, atol=1e-6)
    back.clear()
    if state.first is None:
        model.eval()
        state.first = loss_of(999, 0).item()
        model.train()
    print("IN", slot, start, os.getpid(), state.step, hvd.rank(), hvd.size(), flush=True)
    while state.step < {STEPS} or hvd.size() < full:
        if state.step >= {STEPS}:
            pace.wait(0.01)
        fault(state.step)
        if how == "warm-up" and state.step > 9 and hvd.size() > 1:
            assert optimizer.local_stats().get("mode", "local") == "local", optimizer.local_stats()
        optimizer.zero_grad()
        loss_of(state.step, slot).backward()
        optimizer.step()
        state.step += 1
        state.commit()
    if f"{{slot}}:{{start}}:drain" in faults:
        optimizer._sirtaki_local._pull = lambda: fault("drain")
    optimizer.drain()

train(state)
models = hvd.allgather_object(values())
assert all(torch.equal(mine, models[0]) for mine in models), "models differ at the end"
model.eval()
last = loss_of(999, 0).item()
assert last < 0.9 * state.first, (state.first, last)
print("DONE", slot, start, os.getpid(), state.step, hvd.size(), flush=True)
hvd.shutdown()
"""


def train(how: str, ranks: str, faults: str, folder: Path, *, np: int = 3, full: int = 0) -> Outcome:
    options = ("-np", str(np), "--elastic", ranks, "--elastic-silence", "5s")
    return launch(*options, *warm("-c", TRAIN, how, faults, str(full), str(folder)), timeout=150)


def check_ends(done: Outcome, starts: dict[int, int]) -> None:
    """Fails unless these processes of the slots have come to the end, each the same one from its first entry on."""
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    ends = re.findall(r"DONE (\d) (\d) (\d+) \d+ (\d)", done.out)
    assert {int(slot): int(start) for slot, start, *_ in ends} == starts, text
    assert {int(size) for *_, size in ends} == {len(starts)}, text
    for slot, start, pid, _ in ends:
        assert set(re.findall(rf"IN {slot} {start} (\d+)", done.out)) == {pid}, text


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("at once", "4"),  # behind a merge
        ("delay", "0"),  # in the first step, whose gradients are averaged
        ("delay", "3"),  # before the snapshot, whose report the others wait for
        ("delay", "5"),  # while the merge is in flight
        ("delay", "6"),  # in the step of the merge
        ("delay", "drain"),
        ("fragments", "7"),
        ("codec", "5"),
        ("codec", "drain"),
        ("auto", "5"),
        ("auto with merges", "7"),
        ("warm-up", "8"),
    ],
)
def test_survivors_take_the_mean_of_their_models_and_train_on(how: str, place: str, tmp_path: Path) -> None:
    done = train(how, "2:", f"1:1:{place}", tmp_path)
    check_ends(done, {0: 1, 2: 1})
    assert "2 ranks go on as epoch 2" in done.err
    assert "local updates end:" not in done.err, "a loss is no error of local updates"


@pytest.mark.parametrize(
    ("how", "faults"),
    [
        ("delay", "0:1:5"),
        ("codec", "1:1:6"),
        ("fragments", "0:1:3,1:1:8"),
        ("auto with merges", "2:1:7"),
        ("warm-up", "0:1:8"),
    ],
)
def test_lost_ranks_come_back_and_take_the_mean_of_the_others(how: str, faults: str, tmp_path: Path) -> None:
    done = train(how, "1:3", faults, tmp_path, full=3)
    lost = {int(fault[0]) for fault in faults.split(",")}
    check_ends(done, {slot: 2 if slot in lost else 1 for slot in range(3)})


def test_losses_one_after_another_down_to_the_last_rank(tmp_path: Path) -> None:
    done = train("delay", "1:", "0:1:2,2:1:6,3:1:9", tmp_path, np=4)
    check_ends(done, {1: 1})
    assert done.err.count(" on as epoch ") == 3, done.err


@pytest.mark.parametrize("how", ["delay", "codec"])
def test_a_rank_leaves_on_notice_during_merges(how: str, tmp_path: Path) -> None:
    done = train(how, "1:3", "2:1:5:leave", tmp_path)
    check_ends(done, {0: 1, 1: 1})
    assert re.search(r"rank 2 \(host .* has left in order; 2 ranks go on as epoch 2", done.err), done.err


# Gradients are integers, and so are the models of one rank. There are no merges, so a model says which steps it has.
EXACT = """
import os, signal, sys
import torch
import sirtaki.torch as hvd

kind = sys.argv[1]
slot = int(os.environ["SIRTAKI_JOB_RANK"])
torch.set_num_threads(1)
hvd.init()
weight = torch.nn.Parameter(torch.zeros(4))
model = torch.nn.ParameterList([weight])
local = hvd.LocalUpdates("fixed:steps=64,delay=0", outer="none")
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 1.0), [("0", weight)], local_updates=local)
state = hvd.elastic.TorchState(model, optimizer, step=0)
state.register_reset_callbacks([lambda: print("BACK", slot, state.step, *weight.tolist(), flush=True)])

@hvd.elastic.run
def train(state):
    print("IN", slot, hvd.size(), state.step, *weight.tolist(), flush=True)
    while hvd.size() == 3:
        if state.step == 4 and slot == 1:
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        optimizer.zero_grad()
        (weight * torch.arange(4.0).add(3 * slot + 5 * state.step).remainder(7)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()

train(state)
hvd.shutdown()
"""


def exact_model(slots: list[int], steps: int) -> list[Fraction]:
    """Returns the mean of the models of these ranks after so many steps, of which the first one averages gradients."""

    def gradient(slot: int, step: int, element: int) -> int:
        return (element + 3 * slot + 5 * step) % 7

    return [
        -Fraction(sum(gradient(slot, 0, i) for slot in range(3)), 3)
        - Fraction(sum(gradient(slot, step, i) for slot in slots for step in range(1, steps)), len(slots))
        for i in range(4)
    ]


def found(pattern: str, done: Outcome) -> dict[int, tuple[int, list[float]]]:
    """Returns the steps and the model of the last line of each slot with this pattern."""
    lines = re.findall(rf"{pattern} (\d+) ([-\d. ]+)", done.out)
    return {int(slot): (int(step), [float(value) for value in row.split()]) for slot, step, row in lines}


def test_steps_of_the_survivors_stay_in_the_model(tmp_path: Path) -> None:
    done = launch("-np", "3", "--elastic", "2:", *warm("-c", EXACT, "kill"), timeout=100)
    assert done.code == 0, f"{done.out}\n{done.err}"
    back, after = found(r"BACK (\d)", done), found(r"IN (\d) 2", done)
    assert set(back) == set(after) == {0, 2}, done.out
    for slot, (steps, model) in back.items():
        assert model == pytest.approx([float(value) for value in exact_model([slot], steps)], abs=1e-4)
    mean = [sum(values) / 2 for values in zip(*(model for _, model in back.values()), strict=True)]
    for _, model in after.values():
        assert model == pytest.approx(mean, abs=1e-4)
    made = sorted(steps for steps, _ in back.values())
    text = f"{made[0]} steps" if made[0] == made[1] else f"{made[0]} to {made[1]} steps"
    assert f"the mean of the models of 2 ranks, which had made {text}" in done.err, done.err


def test_steps_of_a_rank_that_leaves_stay_in_the_model(tmp_path: Path) -> None:
    done = launch("-np", "3", "--elastic", "1:3", *warm("-c", EXACT, "leave"), timeout=100)
    assert done.code == 0, f"{done.out}\n{done.err}"
    after = found(r"IN (\d) 2", done)
    assert set(after) == {0, 2}, done.out
    for steps, model in after.values():
        assert model == pytest.approx([float(value) for value in exact_model([0, 1, 2], steps)], abs=1e-4)


# An unchanged loop makes a step after another until a loss ends it.
PLAIN = """
import os, signal
import torch
import sirtaki.torch as hvd

hvd.init()
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 0.1), [("0", weight)], local_updates=2)
while True:
    if hvd.rank() == 1 and optimizer.local_stats().get("merges", 0) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
"""


def test_a_loss_ends_an_unchanged_loop_with_its_cause() -> None:
    done = launch("-np", "2", "--elastic", "1:", *warm("-c", PLAIN), timeout=100)
    assert done.code != 0
    assert re.search(r"RanksChangedError: rank 1 \(host .*killed by signal 9", done.err), done.err
