"""Sizes of the tensors of models, layer by layer. Pure; standard library only."""

from __future__ import annotations

RESNET50_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnet50_layers(scale: int) -> list[list[int]]:
    """Element counts of ResNet-50's 161 tensors, layer by layer, divided by `scale` (at least 1)."""
    layers = [[64 * 3 * 49, 64, 64]]
    inputs = 64
    for planes, repeats in RESNET50_BLOCKS:
        for block in range(repeats):
            outputs = 4 * planes
            shapes = [(inputs, planes, 1), (planes, planes, 9), (planes, outputs, 1)]
            if block == 0:
                shapes.append((inputs, outputs, 1))
            layers += [[a * b * k, b, b] for a, b, k in shapes]
            inputs = outputs
    layers.append([2048 * 1000, 1000])
    return [[max(1, numel // scale) for numel in layer] for layer in layers]


def equal_layers(tensors: int, numel: int, per_layer: int) -> list[list[int]]:
    """`tensors` tensors of one size, `per_layer` to a layer."""
    sizes = [numel] * tensors
    return [sizes[i : i + per_layer] for i in range(0, tensors, per_layer)]
