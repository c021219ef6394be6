"""Models for trials of pipelines."""

from __future__ import annotations

from typing import Any

import keras

from hocket.errors import InvalidArgument

_FILTERS = 16
_GROUPS = ((16, 64), (64, 128), (128, 256))  # filters within a block, and after it


def resnet_v2(depth: int, input_shape: tuple[int, ...] = (32, 32, 3), classes: int = 10) -> keras.Model:
    """Return a residual network for small images, with normalisation before convolutions.

    He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks", arXiv 1603.05027: three groups of
    (depth - 2)/9 bottleneck blocks, each on images of half the size, with the filters of Keras' own example.
    Depth 1001 has 3,339 layers and 30.5 million parameters.

    Args:
        depth: 9 n + 2.
        input_shape: height, width, channels.
        classes: number of classes.

    Raises:
        InvalidArgument: `depth` is not 9 n + 2.
    """
    blocks, rest = divmod(depth - 2, 9)
    if depth < 11 or rest:
        raise InvalidArgument(f"depth of a ResNet-v2 must be 9 n + 2: 11, 20, 29, ..., 110, ..., 1001; not {depth}")
    inputs = keras.Input(input_shape)
    value = _convolution(_FILTERS, 3, 1)(inputs)
    value = _activated(value)
    for group, (inner, outer) in enumerate(_GROUPS):
        for block in range(blocks):
            stride = 2 if group and not block else 1
            value = _block(value, inner, outer, stride, is_first=not block, is_activated=not group and not block)
    value = keras.layers.GlobalAveragePooling2D()(_activated(value))
    outputs = keras.layers.Dense(classes, kernel_initializer="he_normal")(value)
    return keras.Model(inputs, outputs, name=f"resnet{depth}_v2")


def _block(value: Any, inner: int, outer: int, stride: int, *, is_first: bool, is_activated: bool) -> Any:
    """Add three convolutions to the value itself, or to a convolution of it where the size changes."""
    branch = value if is_activated else _activated(value)
    branch = _convolution(inner, 1, stride)(branch)
    branch = _convolution(inner, 3, 1)(_activated(branch))
    branch = _convolution(outer, 1, 1)(_activated(branch))
    if is_first:
        value = _convolution(outer, 1, stride)(value)
    return keras.layers.Add()([value, branch])


def _activated(value: Any) -> Any:
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(value))


def _convolution(filters: int, size: int, stride: int) -> Any:
    return keras.layers.Conv2D(
        filters, size, stride, padding="same", kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(1e-4),
    )  # fmt: skip
