"""Hundreds of steps of every lossy compression method: all ranks end with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_support import launch

pytest.importorskip("torch")

RANKS = 3
#: Every lossy method, by wire format. `auto` is left out: on one host it has no link to decide for.
METHODS = {
    "fp16": "fp16",
    "bf16": "bf16",
    "int8": "int8:wire=scatter",
    "int4": "int4:wire=scatter",
    "fp8_e4m3": "fp8_e4m3:wire=gather",
    "fp8_e5m2": "fp8_e5m2:wire=scatter",
    "twobit": "twobit:wire=scatter",
    "counted": "twobit:wire=counts",
    "onebit": "onebit:wire=scatter",
    "hylo": "hylo",
    "algc": "algc",
    "group_topk": "group_topk:momentum=0.9,wire=gather",
    "ring": "group_topk:rate=5%,wire=ring",
    "block_topk": "block_topk",
    "powersgd": "powersgd",
    "importance": "importance:split=loss,start=10%",
}

PROGRAM = f"""
import hashlib, torch
import sirtaki.torch as hvd
hvd.init()
for name, how in {METHODS!r}.items():
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(256, 32))
    plain = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), compression=how)
    generator = torch.Generator().manual_seed(hvd.rank())
    for step in range(200):
        optimizer.zero_grad()
        inputs = torch.randn(2, 1, 8, 8, generator=generator)
        losses = (model(inputs) - inputs.flatten(1)[:, :32]).square().mean(dim=1)
        losses.mean().backward()
        optimizer.report_loss(losses)
        optimizer.step()
    bits = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    lossy = sum(row["codec"] != "none" for row in optimizer.compression_report())
    print("END", name, lossy > 0, finite, hashlib.sha256(bits).hexdigest(), flush=True)
hvd.shutdown()
"""


def test_hundreds_of_compressed_steps_leave_the_same_bits_on_all_ranks(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    output = launch(RANKS, str(script), limit=400, warm=True).stdout
    ends = [line[line.index("END") :].split()[1:] for line in output.splitlines() if "END" in line]
    for name in METHODS:
        own = [end[1:] for end in ends if end[0] == name]
        assert len(own) == RANKS, (name, output[-2000:])
        assert own[0][:2] == ["True", "True"], (name, own)
        assert len({end[-1] for end in own}) == 1, (name, own)
