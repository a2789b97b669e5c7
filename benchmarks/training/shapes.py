"""Sizes of the tensors of models, layer by layer. Pure; standard library only."""

from __future__ import annotations

from math import prod

from benchmarks.training.layer_tables import resnet50


def resnet50_layers(scale: int) -> list[list[int]]:
    """Element counts of the 161 tensors of ResNet-50, layer by layer, divided by `scale`, rounded down, at least 1."""
    return [[max(1, prod(shape) // scale) for _, shape in layer.tensors] for layer in resnet50().layers]


def equal_layers(tensors: int, numel: int, per_layer: int) -> list[list[int]]:
    """Element counts of `tensors` tensors of one size, `per_layer` to a layer."""
    sizes = [numel] * tensors
    return [sizes[i : i + per_layer] for i in range(0, tensors, per_layer)]
