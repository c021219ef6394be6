"""The outputs of a model for a whole batch, of which ranks have parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from keras.src import backend
from torch.utils import _pytree as pytree

from hocket.train import PipelineExecutor
from hocket.train.data.micro_batches import Parts
from hocket.train.run.outputs import joined_outputs


class Piece(NamedTuple):
    """The output of the model for one micro-batch, and the target: (), (y,) or (y, sample_weight)."""

    output: Any
    target: Sequence[Any]


def pieces_of(executor: PipelineExecutor, outputs: Mapping[int, Any], parts: Parts) -> dict[int, Piece]:
    """Return the pieces of this rank, by micro-batch over all replicas, without those that only fill up a batch."""
    first = executor.first_micro_batch
    return {
        first + number: Piece(output, parts.micro_batches[number].target)
        for number, output in outputs.items()
        if parts.shares[first + number]
    }


def gathered(executor: PipelineExecutor, pieces: Mapping[int, Piece], root: int) -> dict[int, Piece] | None:
    """Return the pieces of all ranks on the root, and None on other ranks; called by all ranks."""
    if len(set(executor.holders(executor.split.num_stages - 1))) > 1:
        of_ranks = executor.comm.gather_object(dict(pieces), root)
        pieces = {number: piece for each in of_ranks or () for number, piece in each.items()}
    return dict(pieces) if executor.comm.rank == root else None


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return the concatenation of pieces, with their masks."""
    if len(pieces) == 1:
        return pieces[0]
    output = joined_outputs([each.output for each in pieces])
    leaves = [pytree.tree_leaves(each.output) for each in pieces]
    for place, whole in enumerate(pytree.tree_leaves(output)):
        masks = [backend.get_keras_mask(each[place]) for each in leaves]
        if masks[0] is not None:
            backend.set_keras_mask(whole, torch.cat(masks))
    return Piece(output, joined_outputs([each.target for each in pieces]))
