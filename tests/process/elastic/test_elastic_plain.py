"""Plain loops over DistributedOptimizer in elastic jobs: ranks are killed in a step, and the loops go on."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import launch, warm

STEPS = 8
# A fault "slot:step:place" kills the rank there; at the place "wait", behind a backward, it waits for a loss. Two
# optimizers share each backward. The second one moves `probe` by the mean of the numbers of the ranks that took part.
TRAIN = f"""
import hashlib, os, signal, sys
import torch
import sirtaki
import sirtaki.torch as hvd

faults, sync, compression = sys.argv[1].split(","), sys.argv[2], sys.argv[3]
slot = int(os.environ["SIRTAKI_JOB_RANK"])
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
probe = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression, sync=sync)
second = hvd.DistributedOptimizer(torch.optim.SGD([probe], 1.0), [("probe", probe)], sync=sync)
samples = torch.Generator().manual_seed(slot)

def fault(place):
    if f"{{slot}}:{{step}}:{{place}}" in faults:
        os.kill(os.getpid(), signal.SIGKILL)

def digest():
    parts = [*model.state_dict().values(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]

model[2].weight.register_hook(lambda grad: fault("backward"))
for step in range({STEPS}):
    fault("forward")
    optimizer.zero_grad()
    second.zero_grad()
    (model(torch.randn(4, 8, generator=samples)).square().mean() + probe.sum() * slot).backward()
    fault("between")
    if f"{{slot}}:{{step}}:wait" in faults:
        try:
            hvd.synchronize(hvd.allreduce_async(torch.zeros(1), name="only here"))
        except sirtaki.errors.RanksChangedError:
            pass
    optimizer.step()
    second.step()
    fault("behind")
    print("STEP", slot, step, optimizer.committed, digest(), second.committed, -probe.item(), flush=True)
print("DONE", slot, hvd.size(), flush=True)
hvd.shutdown()
"""


def check_loops(
    np: int, faults: str, sync: str, compression: str, start: Callable[..., tuple[str, ...]] = warm
) -> list[tuple[str, ...]]:
    """Kills ranks; returns what all survivors have seen of each step: committed and digest, committed and probe."""
    command = start("-c", TRAIN, faults, sync, compression)
    done = launch("-np", str(np), "--elastic", "1:", *command, timeout=120)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    killed = [fault[0] for fault in faults.split(",") if not fault.endswith("wait")]
    survivors = [str(slot) for slot in range(np) if str(slot) not in killed]
    ends = re.findall(r"DONE (\d) (\d)", done.out)
    assert sorted(ends) == [(slot, str(len(survivors))) for slot in survivors], text
    seen = {slot: re.findall(rf"STEP {slot} \d+ (\S+) (\S+) (\S+) (\S+)", done.out) for slot in survivors}
    first = seen[survivors[0]]
    assert len(first) == STEPS, text
    assert all(rows == first for rows in seen.values()), text
    # A void step changes nothing, any other one does.
    for before, after in itertools.pairwise(first):
        assert (after[0] == "False") == (after[1] == before[1]), text
        assert (after[2] == "False") == (after[3] == before[3]), text
    for column in (0, 2):
        assert sum(row[column] == "False" for row in first) <= len(killed), text
    return first


@pytest.mark.parametrize(
    ("fault", "sync", "compression"),
    [
        ("0:4:forward", "backward", "none"),
        ("1:4:backward", "backward", "group_topk:rate=0.1,min=0"),
        ("2:4:between", "step", "none"),
        ("0:4:behind", "step", "group_topk:rate=0.1,min=0"),
        ("1:0:forward", "backward", "none"),
    ],
)
def test_a_plain_loop_goes_on_without_a_killed_rank(fault: str, sync: str, compression: str) -> None:
    rows = check_loops(3, fault, sync, compression)
    victim, at, _ = fault.split(":")
    mean = {0: 1.5, 1: 1.0, 2: 0.5}[int(victim)]
    probe = [0.0, *(float(row[3]) for row in rows)]
    moves = [after - before for before, after in itertools.pairwise(probe)]
    assert moves[: max(int(at) - 1, 0)] == [1.0] * max(int(at) - 1, 0)
    assert moves[int(at) + 2 :] == [mean] * (STEPS - int(at) - 2)
    if at == "0":
        assert all(row[0] == row[2] == "True" for row in rows)  # nothing was in flight


def test_a_rank_that_is_behind_catches_up() -> None:
    # Rank 1 learns of the loss in step 4, which rank 0 has passed; step 5 is void on rank 0, so rank 1 leaves it out.
    rows = check_loops(3, "1:4:wait,2:5:forward", "step", "none")
    assert [step for step, row in enumerate(rows) if row[0] == "False"] == [5]
    assert [step for step, row in enumerate(rows) if row[2] == "False"] == [5]


def test_ranks_lost_one_after_another_and_two_at_once() -> None:
    faults = "3:2:backward,0:4:between,2:4:between"
    check_loops(4, faults, "step", "none", start=lambda *program: (sys.executable, *program))


def test_a_plain_loop_learns_that_it_has_no_snapshots(tmp_path: Path) -> None:
    options = ("--elastic", "1:", "--elastic-snapshot-dir", str(tmp_path / "folder"))
    done = launch("-np", "2", *options, *warm("-c", TRAIN, "", "step", "none"), timeout=120)
    assert done.code == 0, done.err
    told = re.findall(r".*elastic\.snapshot_dir has no effect outside of elastic\.run\(\).*", done.err)
    assert [line.partition(" ")[0] for line in told] == ["[0!]"], done.err
    assert not (tmp_path / "folder").exists()
