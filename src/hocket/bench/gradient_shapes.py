"""The gradients of well-known models, as names and shapes in the order of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def _convolution(shapes: Shapes, name: str, inputs: int, outputs: int, size: int) -> None:
    """Add a convolution without a bias, and the normalisation behind it."""
    shapes[f"{name}.weight"] = (outputs, inputs, size, size)
    shapes[f"{name}.norm.weight"] = shapes[f"{name}.norm.bias"] = (outputs,)


def resnet50() -> Shapes:
    """Return the gradients of ResNet-50 (He et al., arXiv 1512.03385, table 1): 161 tensors, 25.6 million elements.

    Examples:
        >>> from math import prod
        >>> shapes = resnet50()
        >>> len(shapes), sum(prod(shape) for shape in shapes.values())
        (161, 25557032)
    """
    shapes: Shapes = {}
    _convolution(shapes, "first", 3, 64, 7)
    inputs = 64
    for stage, (width, num_blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(num_blocks):
            name = f"stage{stage}.block{block}"
            _convolution(shapes, f"{name}.reduce", inputs, width, 1)
            _convolution(shapes, f"{name}.middle", width, width, 3)
            _convolution(shapes, f"{name}.expand", width, 4 * width, 1)
            if block == 0:
                _convolution(shapes, f"{name}.shortcut", inputs, 4 * width, 1)
            inputs = 4 * width
    shapes["head.weight"], shapes["head.bias"] = (1000, inputs), (1000,)
    return shapes


def mobilenet() -> Shapes:
    """Return the gradients of MobileNet (Howard et al., arXiv 1704.04861, table 1): 83 tensors, 4.2 million elements.

    Examples:
        >>> from math import prod
        >>> shapes = mobilenet()
        >>> len(shapes), sum(prod(shape) for shape in shapes.values())
        (83, 4231976)
    """
    shapes: Shapes = {}
    _convolution(shapes, "first", 3, 32, 3)
    inputs = 32
    for number, outputs in enumerate((64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)):
        # A filter of its own for each channel.
        shapes[f"block{number}.depth.weight"] = (inputs, 1, 3, 3)
        shapes[f"block{number}.depth.norm.weight"] = shapes[f"block{number}.depth.norm.bias"] = (inputs,)
        _convolution(shapes, f"block{number}.points", inputs, outputs, 1)
        inputs = outputs
    shapes["head.weight"], shapes["head.bias"] = (1000, inputs), (1000,)
    return shapes


def gpt(num_layers: int = 6, width: int = 384, vocabulary: int = 512, length: int = 256) -> Shapes:
    """Return the gradients of a GPT whose embedding is its head.

    Args:
        num_layers: number of blocks.
        width: width of the values between blocks.
        vocabulary: number of tokens.
        length: longest sequence.

    Examples:
        >>> from math import prod
        >>> shapes = gpt()
        >>> len(shapes), sum(prod(shape) for shape in shapes.values())
        (76, 10942464)
    """
    shapes: Shapes = {"tokens": (vocabulary, width), "places": (length, width)}
    for layer in range(num_layers):
        name = f"block{layer}"
        for norm in ("norm1", "norm2"):
            shapes[f"{name}.{norm}.weight"] = shapes[f"{name}.{norm}.bias"] = (width,)
        for part, inputs, outputs in (
            ("attention", width, 3 * width),
            ("projection", width, width),
            ("up", width, 4 * width),
            ("down", 4 * width, width),
        ):
            shapes[f"{name}.{part}.weight"], shapes[f"{name}.{part}.bias"] = (outputs, inputs), (outputs,)
    shapes["norm.weight"] = shapes["norm.bias"] = (width,)
    return shapes


MODELS: Mapping[str, Callable[[], Shapes]] = MappingProxyType(
    {"resnet50": resnet50, "mobilenet": mobilenet, "gpt": gpt}
)
