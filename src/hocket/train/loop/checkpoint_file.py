"""The file of a whole training, which does not depend on the split of the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from hocket.collectives.compressed.kept import KEPT, SCALED
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
        kept: what is left of gradients for the next step, the mean over ranks: residuals, momenta and factors of
            compressors, by the names of parameters; and the number of their steps. Files without it have nothing left.
    """

    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Any]
    callbacks: Mapping[str, Mapping[str, Any]]
    epoch: int
    num_batches: int
    totals: Mapping[str, tuple[float, float]]
    num_steps: int
    kept: Mapping[str, Any] = field(default_factory=dict)


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
    kept = content.get("kept", {})
    problem = _find_misfit(kept, own)
    if problem is not None:
        raise InvalidArgument(f"{path} is damaged, or of another model: {problem}")
    return TrainingState(**{name: content[name] for name in _KINDS}, kept=kept)


_KINDS = {"model": dict, "optimizer": dict, "callbacks": dict, "epoch": int, "num_batches": int, "totals": dict,
          "num_steps": int}  # fmt: skip


def _find_misfit(kept: Any, own: Mapping[str, torch.Tensor]) -> str | None:
    """Return what is wrong with what is left of gradients."""
    if not isinstance(kept, dict) or not set(kept) <= {*KEPT, "num_steps"}:
        return f"'kept' must be a dict of {', '.join(KEPT)} and num_steps"
    if type(kept.get("num_steps", 0)) is not int or kept.get("num_steps", 0) < 0:
        return f"num_steps of 'kept' must be an int of 0 or more, not {kept['num_steps']!r}"
    for what in KEPT:
        for name, each in kept.get(what, {}).items():
            if name not in own:
                return f"the {what} have {name!r}, which this model lacks"
            if not isinstance(each, torch.Tensor) or each.dtype != torch.float32 or not torch.isfinite(each).all():
                return f"the {what} of {name!r} must be a tensor of finite float32"
            if each.shape != (own[name].numel(),) if what in SCALED else each.ndim != 2:
                return f"the {what} of {name!r} have the shape {list(each.shape)}"
    return None


def _find_difference(saved: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> str | None:
    for name in (*own, *saved):
        if name not in saved:
            return f"it lacks {name!r}"
        if name not in own:
            return f"it has {name!r}, which this model lacks"
        if saved[name].shape != own[name].shape:
            return f"{name!r} has shape {list(saved[name].shape)} in the file and {list(own[name].shape)} here"
    return None
