"""Layers of well-known models in the order of their forward pass: tensors with shapes, and forward FLOPs.

Built from the architectures: VGG-19 (Simonyan and Zisserman, 2015), ResNet-50 (He et al., 2016, stride in the 3x3
convolution), BERT-base (Devlin et al., 2019). A layer is a group of tensors that become ready together and are needed
together. A multiply-add counts as two FLOPs; activations and pooling are left out. Pure; standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

IMAGE = 224
SEQUENCE = 128


@dataclass(frozen=True)
class Layer:
    """Tensors that one operation of the forward pass needs."""

    name: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    flops: int  # forward, one sample

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(prod(shape) for _, shape in self.tensors)


@dataclass(frozen=True)
class Model:
    """Layers in forward order."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """Elements of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> int:
        """Forward FLOPs of one sample."""
        return sum(layer.flops for layer in self.layers)

    def forward_shares(self) -> list[float]:
        """Share of each layer in the forward pass; the shares add up to 1."""
        return [layer.flops / self.flops for layer in self.layers]

    def scaled(self, factor: float) -> list[list[int]]:
        """Element counts of the tensors, layer by layer, divided by `factor` (at least 1 each)."""
        return [[max(1, round(prod(shape) / factor)) for _, shape in layer.tensors] for layer in self.layers]


def _linear(name: str, inputs: int, outputs: int, rows: int = 1, extra: int = 0) -> Layer:
    tensors = (("weight", (outputs, inputs)), ("bias", (outputs,)))
    return Layer(name, tensors, rows * outputs * (2 * inputs + 1) + extra)


# ---- VGG-19 --------------------------------------------------------------------------------

_VGG19_BLOCKS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels, convolutions; a pooling after each


def vgg19() -> Model:
    """Sixteen 3x3 convolutions and three linear layers."""
    layers, inputs, side = [], 3, IMAGE
    for block, (channels, repeats) in enumerate(_VGG19_BLOCKS, 1):
        for number in range(1, repeats + 1):
            shapes = (("weight", (channels, inputs, 3, 3)), ("bias", (channels,)))
            flops = side * side * channels * (2 * 9 * inputs + 1)
            layers.append(Layer(f"conv{block}_{number}", shapes, flops))
            inputs = channels
        side //= 2
    features = inputs * side * side
    for name, width, outputs in (("fc6", features, 4096), ("fc7", 4096, 4096), ("fc8", 4096, 1000)):
        layers.append(_linear(name, width, outputs))
    return Model("vgg19", tuple(layers))


# ---- ResNet-50 -----------------------------------------------------------------------------

_RESNET50_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # planes, blocks
_EXPANSION = 4


def _convolution(name: str, inputs: int, outputs: int, kernel: int, side: int) -> Layer:
    """A convolution without bias, followed by batch normalisation."""
    shapes = (
        ("conv.weight", (outputs, inputs, kernel, kernel)),
        ("bn.weight", (outputs,)),
        ("bn.bias", (outputs,)),
    )
    return Layer(name, shapes, side * side * outputs * (2 * kernel * kernel * inputs + 2))


def resnet50() -> Model:
    """Sixteen bottleneck blocks between a 7x7 convolution and a linear layer."""
    side = IMAGE // 2
    layers = [_convolution("conv1", 3, 64, 7, side)]
    inputs, side = 64, side // 2
    for stage, (planes, blocks) in enumerate(_RESNET50_STAGES, 1):
        for block in range(blocks):
            name, outputs = f"layer{stage}.{block}", planes * _EXPANSION
            out = side // 2 if block == 0 and stage > 1 else side
            layers.append(_convolution(f"{name}.1", inputs, planes, 1, side))
            layers.append(_convolution(f"{name}.2", planes, planes, 3, out))
            layers.append(_convolution(f"{name}.3", planes, outputs, 1, out))
            if block == 0:
                layers.append(_convolution(f"{name}.downsample", inputs, outputs, 1, out))
            inputs, side = outputs, out
    layers.append(_linear("fc", inputs, 1000))
    return Model("resnet50", tuple(layers))


# ---- BERT-base -----------------------------------------------------------------------------

_BERT_WIDTH, _BERT_LAYERS, _BERT_INNER = 768, 12, 3072
_BERT_WORDS, _BERT_POSITIONS, _BERT_TYPES = 30522, 512, 2
_NORM_FLOPS = 8  # an element: mean, variance, scale and shift


def _with_norm(layer: Layer) -> Layer:
    norm = (("norm.weight", (_BERT_WIDTH,)), ("norm.bias", (_BERT_WIDTH,)))
    return Layer(layer.name, layer.tensors + norm, layer.flops + _NORM_FLOPS * SEQUENCE * _BERT_WIDTH)


def bert_base() -> Model:
    """Embeddings, twelve encoder layers, pooler. Backward makes the embeddings ready last; forward needs them first."""
    width, tokens = _BERT_WIDTH, SEQUENCE
    words = (
        ("word.weight", (_BERT_WORDS, width)),
        ("position.weight", (_BERT_POSITIONS, width)),
        ("type.weight", (_BERT_TYPES, width)),
    )
    layers = [_with_norm(Layer("embeddings", words, 2 * tokens * width))]
    attention = 2 * 2 * tokens * tokens * width  # scores, and their sum of values
    for number in range(_BERT_LAYERS):
        name = f"layer{number}"
        layers += [_linear(f"{name}.{part}", width, width, tokens) for part in ("query", "key")]
        layers.append(_linear(f"{name}.value", width, width, tokens, attention))
        layers.append(_with_norm(_linear(f"{name}.attention", width, width, tokens)))
        layers.append(_linear(f"{name}.intermediate", width, _BERT_INNER, tokens))
        layers.append(_with_norm(_linear(f"{name}.output", _BERT_INNER, width, tokens)))
    layers.append(_linear("pooler", width, width))
    return Model("bert_base", tuple(layers))


MODELS: dict[str, Callable[[], Model]] = {"vgg19": vgg19, "resnet50": resnet50, "bert_base": bert_base}
