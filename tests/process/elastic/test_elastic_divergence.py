"""Ranks of an elastic job that silently differ, under sirtakirun: the majority heals them, or the job ends."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import Outcome, launch, warm

# "slot:step:what" flips a bit behind that step: of a parameter, or of the state of the optimizer. With "leave" the rank
# gets SIGTERM there. Behind the last step, commits go on for more than two passes.
TRAIN = """
import hashlib, os, signal, sys
import torch
import sirtaki.torch as hvd

faults, steps = sys.argv[1].split(","), int(sys.argv[2])
slot = int(os.environ["SIRTAKI_JOB_RANK"])
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(slot)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), model.named_parameters())
points = torch.arange(64.0).view(8, 8) / 64

def flip(tensor):
    tensor.detach().view(-1).view(torch.int32)[-1] ^= 1 << 7

def digest():
    moments = [value for one in optimizer.state.values() for value in one.values()]
    parts = [*(p.detach() for p in model.parameters()), *moments]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]

@hvd.elastic.run
def train(state):
    print("IN", slot, state.step, hvd.size(), flush=True)
    while state.step < steps + 80:
        if state.step < steps:
            optimizer.zero_grad()
            (model(points) - points[:, :1].sin()).square().mean().backward()
            optimizer.step()
            model[1].running_mean += slot
        state.step += 1
        if f"{slot}:{state.step}:parameter" in faults:
            flip(model[0].weight)
        if f"{slot}:{state.step}:moment" in faults:
            flip(optimizer.state[model[2].weight]["exp_avg"])
        if f"{slot}:{state.step}:leave" in faults:
            os.kill(os.getpid(), signal.SIGTERM)
        state.commit()

train(hvd.elastic.TorchState(model, optimizer, step=0))
print("DONE", slot, digest(), flush=True)
hvd.shutdown()
"""


def train(ranks: int, elastic: str, faults: str, *options: str) -> tuple[Outcome, list[str]]:
    """Returns the outcome of a job and the digests at its end."""
    command = warm("-c", TRAIN, faults, "40")
    done = launch("-np", str(ranks), "--elastic", elastic, *options, *command, timeout=90)
    return done, re.findall(r"DONE \d (\w+)", done.out)


def test_ranks_that_differ_are_healed_and_the_training_ends_as_without_faults() -> None:
    plain, digests = train(3, "2:", "")
    assert plain.code == 0, plain.err
    assert "differs" not in plain.err
    # Behind the last step, so that no gradient of the victim changes the others.
    done, healed = train(3, "2:", "2:41:parameter,1:41:moment")
    assert done.code == 0, done.err
    assert len(healed) == 3
    assert len({*digests, *healed}) == 1, done.err
    (line,) = re.findall(r"rank \d differs from .*", done.err)
    assert "rank 2 differs from ranks 0-1 in model.0.weight" in line
    assert "rank 1 differs from ranks 0, 2 in optimizer: exp_avg of model.2.weight" in line


def test_a_flip_in_the_middle_of_a_training_is_healed_within_a_pass() -> None:
    done, digests = train(4, "2:4", "3:5:parameter,0:15:moment")
    assert done.code == 0, done.err
    assert len(digests) == 4
    assert len(set(digests)) == 1, done.err
    assert len(re.findall("differs from", done.err)) == 2, done.err


def test_a_rank_that_leaves_at_the_commit_of_a_difference_does_so_behind_the_healing() -> None:
    done, digests = train(4, "2:4", "1:1:parameter,2:1:leave")
    assert done.code == 0, done.err
    assert "has left in order" in done.err
    assert len(digests) == 3
    assert len(set(digests)) == 1, done.err
    assert "rank 1 differs from ranks 0, 2-3 in model.0.weight" in done.err


@pytest.mark.parametrize("elastic", ["2:", "1:2"])
def test_two_ranks_that_stop_end_with_an_error_on_both_and_no_rank_starts_again(elastic: str) -> None:
    done, digests = train(2, elastic, "1:5:parameter", "--elastic-divergence", "stop")
    assert done.code == 1, done.err
    assert not digests
    text = "model.0.weight has different values on rank 0 and rank 1, and no majority tells which are right"
    assert set(re.findall(rf"\[(\d)!\] .*MismatchError: {text}", done.err)) == {"0", "1"}, done.err
    assert "is started again" not in done.err


@pytest.mark.parametrize("how", ["heal", "report"])
def test_two_ranks_go_on_with_a_warning(how: str) -> None:
    done, digests = train(2, "1:2", "1:5:parameter", "--elastic-divergence", how)
    assert done.code == 0, done.err
    assert len(set(digests)) == 2
    assert len(re.findall("differ in model.0.weight", done.err)) == 1, done.err


def test_off_compares_nothing() -> None:
    done, digests = train(2, "1:2", "1:5:parameter", "--elastic-divergence", "off")
    assert done.code == 0, done.err
    assert len(set(digests)) == 2
    assert "differ in" not in done.err
