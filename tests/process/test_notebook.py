"""The notebook of the examples, run cell by cell in a kernel of Jupyter."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples/notebook.ipynb"
LIMIT_SECONDS = 120


def test_the_notebook_trains_on_two_ranks() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=LIMIT_SECONDS).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert {output.output_type for output in outputs} == {"stream"}, outputs
    printed = "".join(output.text for output in outputs)
    losses = re.findall(r"rank (\d): loss ([\d.]+) at first, ([\d.]+) at last", printed)
    assert [rank for rank, _, _ in losses] == ["0", "1"], printed
    assert all(float(last) < float(first) / 2 for _, first, last in losses), printed
    assert "the models are equal: True" in printed
    assert "rank 1: no data on this rank" in printed


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []
