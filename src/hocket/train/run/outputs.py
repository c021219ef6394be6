"""Outputs of micro-batches, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def joined_outputs(parts: Sequence[Any]) -> Any:
    """Return trees of tensors as one, along their first axes; what is no tensor is that of the first."""
    leaves = [pytree.tree_leaves(part) for part in parts]
    tree = pytree.tree_structure(parts[0])
    return pytree.tree_unflatten(
        [torch.cat(each) if isinstance(each[0], torch.Tensor) else each[0] for each in zip(*leaves, strict=True)], tree
    )
