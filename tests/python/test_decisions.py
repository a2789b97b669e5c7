"""The report of a compression policy that decides from measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rank_support import launch

pytest.importorskip("torch")

# Each rank counts as a host: a policy decides for links between hosts, and one host has none.
TRAINED = """
import os
os.environ["SIRTAKI_JOB_HOST_ID"] = os.environ["SIRTAKI_JOB_RANK"]
import json, sys, torch, sirtaki
import sirtaki.torch as hvd
hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 16_384), torch.nn.ReLU(), torch.nn.Linear(16_384, 16))
plain = torch.optim.SGD(model.parameters(), lr=0.02)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), compression="auto")
for step in range(40):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
[decisions] = sirtaki.stats()["decisions"].values()
sys.stdout.write("TOLD " + json.dumps(decisions) + "\\n")
hvd.shutdown()
"""


def test_decisions_are_told_with_what_they_follow_from(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TRAINED)
    done = launch(2, str(program), warm=True)
    told = [json.loads(line.split("TOLD ", 1)[1]) for line in done.stdout.splitlines() if "TOLD " in line]
    assert len(told) == 2, done.stdout
    assert told[0] == told[1], "ranks decide alike"
    assert told[0][-1]["step"] >= 16, "the last word"
    measured = [entry for entry in told[0] if entry["policy"]]
    assert measured, told
    for entry in measured:
        assert entry["policy"].startswith("auto: "), entry
        assert "link" in entry["policy"], entry
    assert any(entry["measured_us"] > 0 and entry["predicted_us"] > 0 for entry in measured), told
