"""Concatenation of the outputs of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree


def joined_outputs(parts: Sequence[Any]) -> Any:
    """Concatenate trees of tensors along their first axes; other leaves are those of the first tree."""
    leaves = [pytree.tree_leaves(part) for part in parts]
    tree = pytree.tree_structure(parts[0])
    return pytree.tree_unflatten(
        [torch.cat(each) if isinstance(each[0], torch.Tensor) else each[0] for each in zip(*leaves, strict=True)], tree
    )
