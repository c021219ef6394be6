"""The file of a whole training, which does not depend on the split of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from hocket.errors import InvalidArgument, first_line
from hocket.whole_file import write_whole


@dataclass(frozen=True)
class TrainingState:
    """The state that a training needs to continue.

    Args:
        model: state dict of the unsplit model.
        optimizer: state of the optimizer, as `Update.merge` returns it.
        callbacks: states of callbacks, by names such as "EarlyStopping 0".
        epoch, num_batches, totals, num_steps: see `Trainer`.
    """

    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any]
    callbacks: Mapping[str, Mapping[str, Any]]
    epoch: int
    num_batches: int
    totals: Mapping[str, tuple[float, float]]
    num_steps: int


def write_checkpoint(state: TrainingState, path: Path) -> None:
    """Write a state to a file, which appears when it is complete.

    Raises:
        OSError: the file cannot be written.
    """
    content = {each.name: getattr(state, each.name) for each in fields(state)}
    plain = pytree.tree_map_only(np.generic, np.generic.item, content)  # torch.load refuses NumPy's numbers
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(path, lambda part: torch.save(plain, part))
    except RuntimeError as error:  # torch raises it if a folder is missing or the disk is full
        raise OSError(str(error)) from error


def read_checkpoint(path: Path, own: Mapping[str, torch.Tensor], callbacks: Iterable[str]) -> TrainingState:
    """Read a state from a file.

    Args:
        path: path of the file.
        own: state dict of the model that continues.
        callbacks: names of the callbacks that need a state.

    Raises:
        OSError: the file cannot be read.
        InvalidArgument: it is not a hocket checkpoint, or is of another model or other callbacks.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch may raise anything for other files
        raise InvalidArgument(
            f"{path} is not a hocket checkpoint: {type(error).__name__}: {first_line(error)}"
        ) from error
    for name, kind in _KINDS.items():
        if not isinstance(content, dict) or name not in content:
            raise InvalidArgument(f"{path} is not a hocket checkpoint: it lacks {name!r}")
        if not isinstance(content[name], kind) or isinstance(content[name], bool):
            actual = type(content[name]).__name__
            raise InvalidArgument(
                f"{path} is not a hocket checkpoint: {name!r} must be of type {kind.__name__}, not {actual}"
            )
        if kind is int and content[name] < 0:
            raise InvalidArgument(f"{path} is not a hocket checkpoint: {name!r} must be 0 or more, not {content[name]}")
    problem = _find_difference(content["model"], own)
    if problem is not None:
        raise InvalidArgument(f"{path} is of another model: {problem}")
    absent = [name for name in callbacks if name not in content["callbacks"]]
    if absent:
        raise InvalidArgument(
            f"{path} has no state of callback {absent[0]}, so it cannot continue here: pass the callbacks of the saved "
            "training"
        )
    return TrainingState(**{name: content[name] for name in _KINDS})


_KINDS = {"model": dict, "optimizer": dict, "callbacks": dict, "epoch": int, "num_batches": int, "totals": dict,
          "num_steps": int}  # fmt: skip


def _find_difference(saved: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> str | None:
    for name in (*own, *saved):
        if name not in saved:
            return f"it lacks {name!r}"
        if name not in own:
            return f"it has {name!r}, which this model lacks"
        if saved[name].shape != own[name].shape:
            return f"{name!r} has shape {list(saved[name].shape)} in the file and {list(own[name].shape)} here"
    return None
