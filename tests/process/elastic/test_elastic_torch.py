"""Elastic training with PyTorch under sirtakirun: model, optimizer and samples stay right when ranks go and come."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import PYTHON, ROOT, launch, running, warm

# The second process of the victim stays alive, and the program makes whole epochs until there are `least` ranks.
TRAIN = """
import hashlib, os, signal, sys
from pathlib import Path
import torch
import sirtaki.torch as hvd
from torch.utils.data import DataLoader

victim, compression, sync, least, killed = int(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), Path(sys.argv[5])
slot = int(os.environ["SIRTAKI_JOB_RANK"])
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(slot)
points = torch.arange(48.0).view(48, 1).expand(48, 8) / 48
model = torch.nn.Sequential(torch.nn.Linear(8, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression, sync=sync)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
sampler = hvd.elastic.ElasticSampler(range(48), seed=3)
state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, step=0, last=2)

def digest():
    parts = [*model.state_dict().values(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()[:16]

@hvd.elastic.run
def train(state):
    while state.epoch < state.last:
        for batch, indices in enumerate(DataLoader(range(48), batch_size=2, sampler=sampler)):
            if slot == victim and state.step == 3 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = (model(points[indices]) - points[indices, :1].sin()).square().mean()
            loss.backward()
            hvd.allreduce(loss.detach(), name="loss")
            optimizer.step()
            sampler.record_batch(batch, len(indices))
            state.step += 1
            print("SEEN", state.epoch, *indices.tolist(), flush=True)
            state.commit()
        scheduler.step()
        state.epoch += 1
        if hvd.size() < least:
            state.last = state.epoch + 1
        sampler.set_epoch(state.epoch)
        state.commit()

train(state)
digests = hvd.allgather_object(digest())
print("DONE", slot, hvd.size(), state.step, *digests, flush=True)
hvd.shutdown()
"""


@pytest.mark.parametrize(
    ("victim", "compression", "sync"),
    [(0, "none", "backward"), (2, "none", "step"), (1, "group_topk:rate=0.1", "backward")],
)
def test_a_loss_costs_no_committed_sample_and_models_stay_equal(
    victim: int, compression: str, sync: str, tmp_path: Path
) -> None:
    command = warm("-c", TRAIN, str(victim), compression, sync, "0", str(tmp_path / "killed"))
    done = launch("-np", "3", "--elastic", "2:", *command, timeout=150)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    ends = re.findall(r"DONE (\d) 2 (\d+) (\w+) (\w+)", done.out)
    assert sorted(slot for slot, *_ in ends) == [str(slot) for slot in range(3) if slot != victim], text
    assert len({digest for _, _, *digests in ends for digest in digests}) == 1, text
    # Three steps of 6 samples, then steps of 4 for the rest.
    assert {steps for _, steps, *_ in ends} == {str(3 + 8 + 12)}, text
    assert ("every rank takes the same share of their sum" in done.err) == (compression != "none"), text
    for epoch in range(2):
        seen = [int(i) for row in re.findall(rf"SEEN {epoch} ([\d ]+)", done.out) for i in row.split()]
        assert sorted(seen) == list(range(48)), text


@pytest.mark.parametrize(
    ("victim", "compression", "sync"), [(0, "none", "backward"), (1, "group_topk:rate=0.1", "step")]
)
def test_a_new_rank_gets_the_model_and_its_share_of_the_samples(
    victim: int, compression: str, sync: str, tmp_path: Path
) -> None:
    command = warm("-c", TRAIN, str(victim), compression, sync, "3", str(tmp_path / "killed"))
    done = launch("-np", "3", "--elastic", "2:3", *command, timeout=200)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    ends = re.findall(r"DONE (\d) 3 (\d+) (\w+) (\w+) (\w+)", done.out)
    assert sorted(slot for slot, *_ in ends) == ["0", "1", "2"], text
    assert len({digest for _, _, *digests in ends for digest in digests}) == 1, text
    assert len({steps for _, steps, *_ in ends}) == 1, text
    assert f"rank {victim} is started again" in done.err
    epochs: dict[int, list[int]] = {}
    for epoch, row in re.findall(r"SEEN (\d+) ([\d ]+)", done.out):
        epochs.setdefault(int(epoch), []).extend(int(i) for i in row.split())
    whole = 0
    for seen in epochs.values():
        assert set(seen) == set(range(48)), text
        whole += len(seen) == 48
        assert len(seen) <= 48 + 2, "more samples come twice than the last step of three ranks needs"
    assert whole >= len(epochs) - 1, text


# Commits once, in step 3, so that a job that goes on makes the steps behind it again.
TRAIN_ON = """
import hashlib
import torch
import sirtaki.torch as hvd

torch.set_num_threads(1)
hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
sampler = hvd.elastic.ElasticSampler(range(48), seed=3)

@hvd.elastic.run
def train(state):
    print("BEGIN", state.step, flush=True)
    batches = iter(torch.utils.data.DataLoader(range(48), batch_size=4, sampler=sampler))
    while state.step < 6:
        points = next(batches).float().view(-1, 1).expand(-1, 8) / 48
        optimizer.zero_grad()
        (model(points) - points[:, :1].sin()).square().mean().backward()
        optimizer.step()
        scheduler.step()
        sampler.record_batch(0, len(points))
        state.step += 1
        if state.step == 3:
            state.commit()

train(hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, step=0))
moments = [value for one in optimizer.state.values() for value in one.values()]
parts = [*model.parameters(), *moments, torch.tensor(scheduler.get_last_lr())]
print("END", hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in parts)).hexdigest(), flush=True)
hvd.shutdown()
"""


def test_a_job_goes_on_from_a_snapshot_as_if_nothing_had_happened(tmp_path: Path) -> None:
    options = ("-np", "2", "--elastic-snapshot-dir", str(tmp_path), "--elastic-snapshot-every", "0s")
    ends = []
    for resume, begin in (("stop", "0"), ("yes", "3")):
        done = launch(*options, "--elastic-resume", resume, *warm("-c", TRAIN_ON), timeout=60)
        assert done.code == 0, done.err
        assert set(re.findall(r"BEGIN (\d)", done.out)) == {begin}
        ends += re.findall(r"END (\w+)", done.out)
        max(tmp_path.glob("snapshot-*")).unlink()  # that of the end, as if the job had been lost before
    assert len(ends) == 4
    assert len(set(ends)) == 1, "the same bits, on both ranks and in both jobs"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_example_goes_on_without_a_killed_rank(victim: int, request: pytest.FixtureRequest) -> None:
    if victim > 0:
        request.getfixturevalue("warm_ranks")
    example = str(ROOT / "examples/elastic_mnist.py")
    command = (PYTHON, example, "--steps", "400", "--batch-size", "8", "--commit-every", "3")
    with running("-np", "3", "--elastic", "2:", *command) as run:
        found, _ = run.read_until(rf"rank {victim} of 3 is process (\d+)")
        os.kill(int(found[1]), signal.SIGKILL)
        done = run.finish(120)
    assert done.code == 0, done.err
    assert "400 steps, test accuracy" in done.out
    assert "2 ranks at the end" in done.out
    assert "2 ranks go on as epoch 2" in done.err
