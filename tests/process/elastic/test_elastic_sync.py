"""Bytes that the ranks of an elastic job send when ranks go and come: survivors of a loss have equal states."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import launch, warm

# The victim is killed in step 3, behind a step that nobody has committed. With "ahead", a survivor has committed one
# more step than the others. The program goes on until there are `least` ranks.
TRAIN = """
import hashlib, os, signal, sys
from pathlib import Path
import torch
import sirtaki
import sirtaki.torch as hvd

victim, ahead, least, killed = int(sys.argv[1]), sys.argv[2] == "ahead", int(sys.argv[3]), Path(sys.argv[4])
slot = int(os.environ["SIRTAKI_JOB_RANK"])
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(slot)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.BatchNorm1d(1024), torch.nn.Linear(1024, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.001)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0, last=6)

def tensors():
    return [*model.state_dict().values(), *(value for one in optimizer.state.values() for value in one.values())]

def digest():
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors())).hexdigest()[:16]

@hvd.elastic.run
def train(state):
    sent = sum(peer["bytes_sent"] for peer in sirtaki.stats()["peers"])
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors())
    total = sum(hvd.allgather_object(sent))
    print("SENT", slot, hvd.size(), size, total, sent, len(set(hvd.allgather_object(digest()))), flush=True)
    while state.step < state.last or hvd.size() < least:
        optimizer.zero_grad()
        model(torch.randn(4, 512)).sum().backward()
        optimizer.step()
        if slot == victim and state.step == 3 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        state.step += 1
        state.commit()
        if ahead and state.step == 3 and slot == 2:
            model[0].weight.data.add_(1.0)
            state.save()

train(state)
print("DONE", slot, hvd.size(), flush=True)
hvd.shutdown()
"""


def train(victim: int, how: str, least: int, elastic: str, folder: Path) -> tuple[list[tuple[int, ...]], str]:
    """Returns the numbers that ranks print behind sync() and all output of a job of three ranks."""
    command = warm("-c", TRAIN, str(victim), how, str(least), str(folder / "killed"))
    options = ("--net-shared-memory", "off", "--elastic-divergence", "off")
    done = launch("-np", "3", "--elastic", elastic, *options, *command, timeout=150)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    return [tuple(map(int, row)) for row in re.findall(r"SENT" + r" (\d+)" * 6, done.out)], text


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_send_what_differs(victim: int, tmp_path: Path) -> None:
    rows, text = train(victim, "-", 2, "2:", tmp_path)
    assert all(equal == 1 for *_, equal in rows), text
    behind = [(size, total) for _, ranks, size, total, _, _ in rows if ranks == 2]
    assert len(behind) == 2, text
    for size, total in behind:
        assert size > 6_000_000, text
        assert total < 60_000, "the buffers of the model, digests and values"


def test_a_survivor_with_another_commit_gets_what_it_lacks(tmp_path: Path) -> None:
    rows, text = train(1, "ahead", 2, "2:", tmp_path)
    assert all(equal == 1 for *_, equal in rows), text
    behind = [total for _, ranks, _, total, _, _ in rows if ranks == 2]
    assert len(behind) == 2, text
    assert all(4 * 512 * 1024 < total < 4 * 512 * 1024 + 60_000 for total in behind), text


def test_a_new_rank_gets_all_from_the_others_together(tmp_path: Path) -> None:
    rows, text = train(1, "-", 3, "2:3", tmp_path)
    assert all(equal == 1 for *_, equal in rows), text
    joined = [row for row in rows if row[1] == 3 and row[2] > 6_000_000]
    assert len(joined) == 3, text
    for slot, _, size, total, sent, _ in joined:
        assert size < total < size + 100_000, text
        assert sent < (60_000 if slot == 1 else size / 2 + 60_000), text
