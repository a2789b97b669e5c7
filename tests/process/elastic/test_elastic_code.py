"""New ranks of an elastic job with another program than the others: they end alone, and the others go on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from launch_support import launch, warm

# Rank 1 is killed in step 3. Its next process has a wider layer, the one after that another value in the state, and the
# third one has the program of the others, which end the training when it is there.
TRAIN = """
import hashlib, os, signal, sys, threading
from pathlib import Path
import torch
import sirtaki.torch as hvd

slot, folder = int(os.environ["SIRTAKI_JOB_RANK"]), Path(sys.argv[1])
start = len(list(folder.glob(f"{slot}.*"))) + 1
(folder / f"{slot}.{start}").touch()
torch.set_num_threads(1)
hvd.init()
torch.manual_seed(10 * slot + start)
model = torch.nn.Sequential(torch.nn.Linear(4, 16 if start == 2 else 8), torch.nn.LazyLinear(1))
model(torch.ones(1, 4))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 0.01), model.named_parameters())
pace = threading.Event()

@hvd.elastic.run
def train(state):
    print("IN", slot, start, os.getpid(), state.step, hvd.size(), flush=True)
    while state.step < 5 or hvd.size() < 3:
        if (slot, start, state.step) == (1, 1, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.full((2, 4), state.step + slot + 1.0)).square().mean().backward()
        optimizer.step()
        state.step += 1
        print("MADE", slot, os.getpid(), state.step, flush=True)  # commit() raises when ranks join
        state.commit()
        pace.wait(0.01)

train(hvd.elastic.TorchState(model, optimizer, step=0, **({"best": 0.0} if start == 3 else {})))
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest()[:16]
print("DONE", slot, start, os.getpid(), digest, flush=True)
hvd.shutdown()
"""


def test_a_new_rank_with_another_program_ends_alone(tmp_path: Path) -> None:
    done = launch("-np", "3", "--elastic", "2:3", *warm("-c", TRAIN, str(tmp_path)), timeout=120)
    text = f"{done.out}\n{done.err}"
    assert done.code == 0, text
    ends = re.findall(r"DONE (\d) (\d) (\d+) (\w+)", done.out)
    assert sorted((slot, start) for slot, start, *_ in ends) == [("0", "1"), ("1", "4"), ("2", "1")], text
    assert len({digest for *_, digest in ends}) == 1, text
    assert re.findall(r"cannot join the job: (.*)", done.err) == [
        "tensor 'model.0.weight': (16, 4) here, (8, 4) on rank 0, and 5 more differ. Start it with the program of the "
        "others",
        "value 'best' is here, but not on rank 0. Start it with the program of the others",
    ], text
    for slot, start, pid, _ in ends:
        entries = re.findall(rf"IN {slot} {start} (\d+) (\d+)", done.out)
        assert len(entries) == (1 if slot == "1" else 5), text
        steps = [(int(step), one) for one, step in re.findall(rf"MADE {slot} (\d+) (\d+)", done.out)]
        if slot != "1":
            assert {one for one, _ in entries} == {pid}, "survivors stay in their processes"
            assert steps == [(step, pid) for step in range(1, len(steps) + 1)], "no step is made again"
            assert len(steps) >= 5, text
    assert not re.findall(r"IN 1 [23]", done.out), text
