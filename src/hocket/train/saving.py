"""A whole training in one file, whatever the split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from hocket.errors import InvalidArgument, first_line
from hocket.train.on_rank_0 import on_rank_0
from hocket.whole_file import write_whole

if TYPE_CHECKING:
    from hocket.train.callbacks import Callback
    from hocket.train.trainer import Trainer

_PARTS = ("model", "optimizer", "callbacks", "epoch", "num_batches", "totals", "num_steps")


def save(trainer: Trainer, path: Path) -> None:
    """Save it; called by all ranks. The file appears when it is complete.

    Raises:
        OSError: it cannot be written; raised on every rank.
    """
    trainer.collect()
    for each in trainer.callbacks:
        each.on_save(trainer)
    states = trainer.comm.gather_object(trainer.update.state(), 0)

    def write() -> None:
        content = {
            "model": trainer.executor.split.model.state_dict(),
            "optimizer": trainer.update.merge(states or []),
            "callbacks": {name: dict(state) for name, (_, state) in _states_of(trainer).items()},
            "epoch": trainer.epoch,
            "num_batches": trainer.num_batches,
            "totals": trainer.totals,
            "num_steps": trainer.num_steps,
        }
        _write(pytree.tree_map_only(np.generic, np.generic.item, content), path)  # which torch.load refuses

    on_rank_0(trainer.comm, write)


def load(trainer: Trainer, path: Path) -> None:
    """Take over what was saved, on all ranks; the model is not changed where it does not fit.

    Raises:
        OSError: the file cannot be read; raised on every rank.
        InvalidArgument: it is no such file, or of another model, optimizer or callbacks.
    """
    content = on_rank_0(trainer.comm, lambda: _read(trainer, path))
    try:
        for name, (callback, _) in _states_of(trainer).items():
            callback.load(content["callbacks"][name])
        trainer.update.load(content["optimizer"])
    except (ValueError, KeyError, IndexError) as error:
        raise InvalidArgument(f"{path} is of another optimizer or other callbacks: {error}") from error
    trainer.executor.split.model.load_state_dict(content["model"])
    trainer.epoch, trainer.num_batches = content["epoch"], content["num_batches"]
    trainer.totals = dict(content["totals"])
    trainer.executor.num_steps = content["num_steps"]


def _read(trainer: Trainer, path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever torch makes of other files
        raise InvalidArgument(
            f"{path} is no training that was saved: {type(error).__name__}: {first_line(error)}"
        ) from error
    absent = [name for name in _PARTS if not isinstance(content, dict) or name not in content]
    if absent:
        raise InvalidArgument(f"{path} is no training that was saved: it has no {absent[0]!r}")
    problem = _find_difference(content["model"], trainer.executor.split.model.state_dict())
    if problem is not None:
        raise InvalidArgument(f"{path} is of another model: {problem}")
    absent = [name for name in _states_of(trainer) if name not in content["callbacks"]]
    if absent:
        raise InvalidArgument(f"{path} is of a training without a callback {absent[0]}, which would begin anew here")
    found: dict[str, Any] = content
    return found


def _states_of(trainer: Trainer) -> dict[str, tuple[Callback, Mapping[str, Any]]]:
    """Callbacks that have something to remember, and what that is, by class and number."""
    found: dict[str, tuple[Callback, Mapping[str, Any]]] = {}
    for each in trainer.callbacks:
        state = each.state()
        if state:
            kind = type(each).__name__
            found[f"{kind} {sum(name.startswith(f'{kind} ') for name in found)}"] = each, state
    return found


def _write(content: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(path, lambda part: torch.save(dict(content), part))
    except RuntimeError as error:  # what torch says where a folder is missing or a disk full
        raise OSError(str(error)) from error


def _find_difference(saved: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> str | None:
    for name in (*own, *saved):
        if name not in saved:
            return f"it has no {name!r}"
        if name not in own:
            return f"it has {name!r}, which this one has not"
        if saved[name].shape != own[name].shape:
            return f"{name!r} is {list(saved[name].shape)} there and {list(own[name].shape)} here"
    return None
