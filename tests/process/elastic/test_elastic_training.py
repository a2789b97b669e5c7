"""elastic.Training under sirtakirun: the batch of all ranks stays, and the learning rate follows their number."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import launch, warm

# The victim is killed in step 6 at its first start. The program makes whole epochs, and ends when all ranks are there.
TRAIN = """
import os, signal, sys
from pathlib import Path
import torch
import sirtaki.torch as hvd
from torch.utils.data import DataLoader

victim, killed = sys.argv[1], Path(sys.argv[2])
slot = os.environ["SIRTAKI_JOB_RANK"]
torch.set_num_threads(1)
hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1 * hvd.size()), model.named_parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
sampler = hvd.elastic.ElasticSampler(range(48), seed=3)

@hvd.elastic.run
def train(state):
    while state.epoch < state.last:
        for batch, indices in enumerate(DataLoader(range(48), state.batch_size, sampler=sampler)):
            if slot == victim and state.step == 6 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(indices.float().view(-1, 1) / 48).square().mean().backward()
            optimizer.step()
            sampler.record_batch(batch, len(indices))
            state.step += 1
            rate = round(optimizer.param_groups[0]["lr"], 6)
            print("SEEN", state.epoch, hvd.size(), rate, *indices.tolist(), flush=True)
            state.commit()
        scheduler.step()
        state.epoch += 1
        if hvd.size() < 3 or not killed.exists():
            state.last = state.epoch + 1
        sampler.set_epoch(state.epoch)
        state.commit()

train(hvd.elastic.Training(
    model, optimizer, batch="global", batch_size=12, lr=lambda old, new: new / old,
    scheduler=scheduler, sampler=sampler, epoch=0, step=0, last=3,
))
print("DONE", slot, hvd.size(), flush=True)
hvd.shutdown()
"""


@pytest.mark.parametrize("victim", [0, 2])
def test_batch_and_learning_rate_are_right_when_ranks_go_and_come(victim: int, tmp_path: Path) -> None:
    done = launch(
        "-np", "3", "--elastic", "2:3", *warm("-c", TRAIN, str(victim), str(tmp_path / "killed")), timeout=120
    )
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    assert sorted(re.findall(r"DONE (\d) 3", done.out)) == ["0", "1", "2"], text
    epochs: dict[str, list[str]] = {}
    sizes = set()
    for epoch, size, rate, row in re.findall(r"SEEN (\d+) (\d) (\S+) ([\d ]+)", done.out):
        assert (float(rate), len(row.split())) == (pytest.approx(0.1 * int(size)), 12 // int(size)), text
        epochs.setdefault(epoch, []).extend(row.split())
        sizes.add(size)
    assert sizes == {"2", "3"}
    for seen in epochs.values():
        assert sorted(map(int, seen)) == list(range(48)), "every step of all ranks takes 12 samples"
    assert "the learning rate is multiplied by 0.6667 for 2 ranks in place of 3" in done.err, text
    assert "the learning rate is multiplied by 1.5 for 3 ranks in place of 2" in done.err, text
