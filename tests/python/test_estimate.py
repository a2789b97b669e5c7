"""`sirtaki estimate`: predictions, models in files, and errors in one line. One process, no session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sirtaki.__main__ import main
from sirtaki.compression import OPTIMIZERS
from sirtaki.torch.compression import suited

SLOW = ("--bandwidth", "20Mbit", "--ranks", "4")
COMPUTE = ("--compute", "40ms")
OTHER = "auto:optimizer=other"
PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 10))
example_input = torch.ones(8, 64)
"""


def estimate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["estimate", *arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_methods_are_faster_than_dense_steps_on_a_slow_link(capsys: pytest.CaptureFixture[str]) -> None:
    found = estimate(capsys, "--parameters", "1M", *SLOW, *COMPUTE)
    seconds = {row["method"]: row["seconds"] for row in found["methods"]}
    # Each rank sends 1.5 times the 4 MB of its gradients.
    assert seconds["dense"] == pytest.approx(6e6 * 8 / 20e6 * 1514 / 1448 + 0.04, rel=0.05)
    assert seconds["dense"] > seconds["int8"] > seconds["auto"] > seconds["local updates"]
    assert found["best"] == "--local-updates auto"


def test_a_fast_link_needs_no_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--parameters", "1M", "--bandwidth", "10Gbit", *COMPUTE]) == 0
    assert "fast enough" in capsys.readouterr().out


def test_a_program_is_timed_and_its_checkpoints_have_its_parameters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    program, checkpoint = tmp_path / "model.py", tmp_path / "model.pt"
    program.write_text(PROGRAM)
    timed = estimate(capsys, str(program), *SLOW)
    assert timed["compute_seconds"] > 0
    assert "`model`, a Sequential" in timed["model"]["found"]
    layer = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 10))
    torch.save({"state_dict": layer.state_dict(), "epoch": 3}, checkpoint)
    saved = estimate(capsys, str(checkpoint), *SLOW, *COMPUTE)
    assert saved["model"]["parameters"] == timed["model"]["parameters"] == sum(p.numel() for p in layer.parameters())


def test_every_optimizer_of_torch_whose_kind_is_known_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2, 2))]
    made = [cls for cls in vars(torch.optim).values() if isinstance(cls, type) and cls is not torch.optim.Optimizer]
    known = [cls for cls in made if cls is not torch.optim.SparseAdam and suited("auto", cls(parameters)) != OTHER]
    assert {torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adafactor} <= set(known)
    assert {cls.__name__.lower() for cls in known} <= set(OPTIMIZERS)
    for name, codec in (("adafactor", "int4"), ("muon", "int8")):
        found = estimate(capsys, "--parameters", "1M", *SLOW, *COMPUTE, "--optimizer", name)["methods"]
        assert codec in next(row["how"] for row in found if row["method"] == "auto")


def test_the_header_of_safetensors_is_enough(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [300, 200], "data_offsets": [0, 120000]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert estimate(capsys, str(path), *SLOW, *COMPUTE)["model"]["parameters"] == 60_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--parameters", "1M"), "--compute 40ms"),
        (COMPUTE, "--parameters 25M"),
        (("/no/such/model.py", *COMPUTE), "no file"),
        (("/no/such/model.safetensors", *COMPUTE), "No such file"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert main(["estimate", *arguments, *SLOW]) == 1
    text = capsys.readouterr().err
    assert words in text
    assert text.count("\n") == 1


def test_a_program_without_a_model_is_told_what_to_define(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = tmp_path / "empty.py"
    program.write_text("a = 1\n")
    assert main(["estimate", str(program), *SLOW, *COMPUTE]) == 1
    assert "defines neither `model`" in capsys.readouterr().err
