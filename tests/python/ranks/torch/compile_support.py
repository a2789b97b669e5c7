"""Counts the graphs that torch.compile makes of a backward."""

from __future__ import annotations

from torch import Tensor


def regions_of(output: Tensor) -> int:
    """Returns the number of compiled functions in the graph of autograd below `output`."""
    found, todo = set(), [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found.add(node)
            todo += [source for source, _ in node.next_functions]
    return sum("CompiledFunction" in node.name() for node in found)
