"""Micro-batches, and the cutting of a batch into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from hocket.errors import InvalidArgument
from hocket.train.data.batches import Batch, Samples, Stream

Weigh = Callable[[Any], float]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A part of a batch that passes through the pipeline as one unit.

    Args:
        inputs: inputs of the model, by name; equal on all ranks of a pipeline.
        target: second argument of the loss.
        weight: factor of this micro-batch's loss in the loss of the batch. For a mean over samples it is the
            micro-batch's fraction of the samples. With a weight of 0 the loss is not computed.
        share: factor of the losses that stages add, such as regularizers; None: `weight`.

    Examples:
        >>> import torch
        >>> half = hk.train.MicroBatch({"input": torch.ones(4, 2)}, target=torch.zeros(4, 1), weight=0.5)
        >>> {name: tuple(value.shape) for name, value in half.inputs.items()}, half.weight
        ({'input': (4, 2)}, 0.5)
    """

    inputs: Mapping[str, Any]
    target: Any = None
    weight: float = 1.0
    share: float | None = None


class Parts(NamedTuple):
    """A batch cut into micro-batches.

    Args:
        micro_batches: the micro-batches of one replica.
        weights: weights of the losses of all micro-batches, over all replicas, in order.
        shares: fractions of the samples of all micro-batches, over all replicas, in order.
        num_items: number of items that the mean in the loss is taken over.
    """

    micro_batches: list[MicroBatch]
    weights: list[float]
    shares: list[float]
    num_items: float


def micro_batches_of(
    batch: Batch,
    names: Sequence[str],
    replica: int,
    num_replicas: int,
    num_micro_batches: int,
    weigh: Weigh | None = None,
    loss_is_mean: bool = True,
) -> Parts:
    """Cut a batch into micro-batches of nearly equal sizes, replica after replica.

    If the batch has fewer samples than micro-batches, the last micro-batches repeat a sample, with a weight of 0.

    Args:
        batch: the batch of all replicas.
        names: names of the model's inputs.
        replica: the replica whose micro-batches are returned.
        num_replicas: number of replicas.
        num_micro_batches: number of micro-batches of each replica.
        weigh: returns, for a target, the number of items that the mean in the loss is taken over; None: the number of
            samples.
        loss_is_mean: True: the loss is a mean, and the weight of a micro-batch is its fraction of the items; False: the
            loss is a sum, and every weight is 1.

    Raises:
        InvalidArgument: the batch does not have the model's inputs.
    """
    total = num_replicas * num_micro_batches
    num_samples = batch.num_samples
    x, y, padded_size = _padded(batch, total)
    bounds = [padded_size * number // total for number in range(total + 1)]
    targets = [_part(y, first, last) for first, last in pairwise(bounds)]
    sizes = [float(last - first) if first < num_samples else 0.0 for first, last in pairwise(bounds)]
    counts = sizes
    if weigh is not None:
        counts = [float(weigh(target)) if size else 0.0 for target, size in zip(targets, sizes, strict=True)]
    num_items = sum(counts)
    if loss_is_mean:
        weights = [count / num_items if num_items else 0.0 for count in counts]
    else:
        weights = [float(size > 0) for size in sizes]
    shares = [size / num_samples for size in sizes]
    inputs = _by_name(x, names)
    micro_batches = [
        MicroBatch(
            {name: _part(value, bounds[number], bounds[number + 1]) for name, value in inputs.items()},
            targets[number],
            weights[number],
            shares[number],
        )
        for number in range(replica * num_micro_batches, (replica + 1) * num_micro_batches)
    ]
    return Parts(micro_batches, weights, shares, num_items)


def first_inputs(source: Samples | Stream, names: Sequence[str], num_parts: int) -> Mapping[str, Any]:
    """Return the model's inputs, by name, in the first micro-batch of a source.

    Args:
        source: a source of batches.
        names: names of the model's inputs.
        num_parts: number of micro-batches of a batch.

    Raises:
        InvalidArgument: the source is a stream, which cannot be read twice.

    Examples:
        >>> data = (np.zeros((8, 2)), np.zeros(8))
        >>> source = hk.train.source_of(data, comm, batch_size=8, shuffle=False, seed=0, drop_last=False)
        >>> tuple(hk.train.first_inputs(source, ["input"], num_parts=4)["input"].shape)
        (2, 2)
    """
    if isinstance(source, Stream):
        raise InvalidArgument(
            "measuring a model needs indexable data: pass arrays or a dataset, or set strategy= and balance="
        )
    first = next(source.batches(0))
    return micro_batches_of(first, names, 0, 1, num_parts).micro_batches[0].inputs


def _padded(batch: Batch, least: int) -> tuple[Any, Any, int]:
    """Return x, y and their length; if the batch has fewer than `least` samples, repeat the last sample."""
    missing = least - batch.num_samples
    if missing <= 0:
        return batch.x, batch.y, batch.num_samples
    x, y = pytree.tree_map_only(
        torch.Tensor, lambda leaf: torch.cat([leaf, leaf[-1:].expand(missing, *leaf.shape[1:])]), (batch.x, batch.y)
    )
    return x, y, least


def _by_name(x: Any, names: Sequence[str]) -> dict[str, Any]:
    if isinstance(x, Mapping):
        unknown = sorted(set(x) - set(names))
        absent = [name for name in names if name not in x]
        if unknown or absent:
            raise InvalidArgument(
                f"the data must have the inputs of the model, {', '.join(names)}, not {', '.join(map(str, x))}"
            )
        return {name: x[name] for name in names}
    values = list(x) if isinstance(x, (tuple, list)) and len(names) != 1 else [x]
    if len(values) != len(names):
        raise InvalidArgument(f"the data must have {len(names)} inputs ({', '.join(names)}), not {len(values)}")
    return dict(zip(names, values, strict=True))


def _part(tree: Any, first: int, last: int) -> Any:
    return pytree.tree_map(lambda leaf: leaf[first:last] if isinstance(leaf, torch.Tensor) else leaf, tree)
