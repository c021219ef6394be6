"""Micro-batches, and how a batch is cut into them."""

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
    """A part of a batch that goes through the pipeline as one.

    Args:
        inputs: what the model takes, by name; the same on all ranks of a pipeline.
        target: what the loss takes beside the model's output.
        weight: of its loss in that of the batch: its part of the samples, where the loss is a mean over samples. Of one
            with a weight of 0 the loss is not computed.
        share: of what stages add to the loss, such as regularizers; None: as `weight`.
    """

    inputs: Mapping[str, Any]
    target: Any = None
    weight: float = 1.0
    share: float | None = None


class Parts(NamedTuple):
    """A batch in parts.

    Args:
        micro_batches: of one replica.
        weights: of the losses of all micro-batches, in order.
        shares: of all micro-batches: each one's part of the samples.
        num_items: that the mean in the loss is over.
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
    """Cut a batch into micro-batches of sizes as equal as can be, replica after replica.

    Where there are fewer samples than micro-batches, the last ones repeat a sample, with a weight of 0.

    Args:
        batch: of all replicas.
        names: of what the model takes.
        replica: whose micro-batches are wanted.
        num_replicas, num_micro_batches: how many there are, of each replica.
        weigh: how many items the mean in the loss is over, of a target; None: samples.
        loss_is_mean: whether it is a mean, so that the weight of a micro-batch is its part of the items, or a sum, so
            that it is 1.

    Raises:
        InvalidArgument: the batch is not what the model takes.
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
    """Return what the model takes, by name, of the first micro-batch of a source, of so many a batch.

    Raises:
        InvalidArgument: the source cannot be read twice.
    """
    if isinstance(source, Stream):
        raise InvalidArgument(
            "measuring a model needs indexable data: pass arrays or a dataset, or choose strategy and balance"
        )
    first = next(source.batches(0))
    return micro_batches_of(first, names, 0, 1, num_parts).micro_batches[0].inputs


def _padded(batch: Batch, least: int) -> tuple[Any, Any, int]:
    """Samples of a batch, and the last one again and again where they are fewer than `least`."""
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
            raise InvalidArgument(f"the model takes {', '.join(names)}; the data have {', '.join(map(str, x))}")
        return {name: x[name] for name in names}
    values = list(x) if isinstance(x, (tuple, list)) and len(names) != 1 else [x]
    if len(values) != len(names):
        raise InvalidArgument(f"the model takes {len(names)} inputs ({', '.join(names)}), the data have {len(values)}")
    return dict(zip(names, values, strict=True))


def _part(tree: Any, first: int, last: int) -> Any:
    return pytree.tree_map(lambda leaf: leaf[first:last] if isinstance(leaf, torch.Tensor) else leaf, tree)
