"""What checkpoints have of communication hooks that compress gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hocket.collectives.compressed.kept import KEPT, SCALED
from hocket.collectives.residual import check_saved
from hocket.errors import InvalidArgument, InvalidType

VERSION = 2


def check_hook_state(saved: Any) -> None:
    """Check that something has the form of `CompressedState.state_dict`."""
    check_saved(saved, "a saved state", VERSION, ("world_size", "rank", "loss_scale", "num_steps", *KEPT))
    if type(saved["world_size"]) is not int or saved["world_size"] < 1:
        raise InvalidArgument(f"world_size must be an int of 1 or more, not {saved['world_size']!r}")
    if type(saved["rank"]) is not int or not 0 <= saved["rank"] < saved["world_size"]:
        raise InvalidArgument(f"rank must be an int from 0 to {saved['world_size'] - 1}, not {saved['rank']!r}")
    scale = saved["loss_scale"]
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < float("inf"):
        raise InvalidArgument(f"loss_scale must be a finite number above 0, not {scale!r}")
    if type(saved["num_steps"]) is not int or saved["num_steps"] < 0:
        raise InvalidArgument(f"num_steps must be an int of 0 or more, not {saved['num_steps']!r}")
    for what in KEPT:
        if not isinstance(saved[what], Mapping):
            raise InvalidType(f"{what} must be a mapping, not {type(saved[what]).__name__}")
        for name, kept in saved[what].items():
            if not isinstance(kept, torch.Tensor) or not kept.is_floating_point() or kept.is_meta:
                raise InvalidArgument(f"{what} must have a tensor of floats for {name!r}, not {kept!r:.80}")
            if what == "factors" and kept.ndim != 2:
                raise InvalidArgument(f"factors must have a matrix for {name!r}, not the shape {tuple(kept.shape)}")
            if not bool(torch.isfinite(kept).all()):
                raise InvalidArgument(f"the {what} of {name!r} are not finite")


def reshard_residuals(saved: Sequence[Mapping[str, Any]], num_ranks: int) -> list[dict[str, Any]]:
    """Return the residuals of a checkpoint for another number of ranks; nothing of them is lost.

    The residual of old rank r goes to new rank r mod `num_ranks`, scaled so that a mean over the new ranks gives it
    the weight that it had.

    Args:
        saved: what `CompressedState.state_dict` returned on all ranks, in their order.
        num_ranks: new number of ranks.

    Raises:
        InvalidArgument, InvalidType: one is not such a dictionary, or they are not those of all ranks.

    Examples:
        >>> import torch
        >>> common = {"version": 2, "world_size": 2, "loss_scale": 1.0, "num_steps": 9, "momenta": {}, "factors": {}}
        >>> old = [{**common, "rank": rank, "residuals": {"w": torch.ones(2) * (rank + 1)}} for rank in (0, 1)]
        >>> hk.torch.reshard_residuals(old, 1)[0]["residuals"]["w"]  # (1 + 2) / 2
        tensor([1.5000, 1.5000])
    """
    if type(num_ranks) is not int or num_ranks < 1:
        raise InvalidArgument(f"num_ranks must be an int of 1 or more, not {num_ranks!r}")
    saved = list(saved)
    for number, each in enumerate(saved):
        check_hook_state(each)
        if each["world_size"] != len(saved):
            raise InvalidArgument(f"there are {len(saved)} saved states, but they are of {each['world_size']} ranks")
        if each["rank"] != number:
            raise InvalidArgument(f"saved[{number}] must be that of rank {number}, not of rank {each['rank']}")
    if not saved:
        raise InvalidArgument("there must be a saved state of each rank, but there are 0")
    _check_same_model(saved)
    scale = saved[0]["loss_scale"]
    made: list[dict[str, Any]] = [
        {"version": VERSION, "world_size": num_ranks, "rank": rank, "loss_scale": scale}
        | {"num_steps": saved[0]["num_steps"], "factors": dict(saved[0]["factors"])}  # they are equal on all ranks
        | {what: {} for what in SCALED}
        for rank in range(num_ranks)
    ]
    for rank, each in enumerate(saved):
        for what in SCALED:
            into = made[rank % num_ranks][what]
            for name, kept in each[what].items():
                part = kept * (num_ranks / len(saved) * scale / each["loss_scale"])
                into[name] = into[name] + part if name in into else part
    return made


def _check_same_model(saved: Sequence[Mapping[str, Any]]) -> None:
    """Check that states of all ranks have parameters of the same shapes."""
    for what in SCALED:
        shapes: dict[str, tuple[int, ...]] = {}
        for rank, each in enumerate(saved):
            for name, kept in each[what].items():
                shape = tuple(kept.shape)
                if shapes.setdefault(name, shape) != shape:
                    raise InvalidArgument(
                        f"the saved {what} of {name!r} must have one shape: rank {rank} has {shape}, and ranks before "
                        f"it have {shapes[name]}"
                    )
