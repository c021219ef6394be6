"""Data as batches that all ranks agree about, cut into micro-batches."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, default_collate

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidType
from hocket.train.executor import MicroBatch

Weigh = Callable[[Any], float]


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples of one step, over all replicas.

    Args:
        x: what the model takes: an array, a tuple of them, or a dictionary by name.
        y: what the loss takes beside the model's output; None if there is nothing.
        num_samples: along the first axis of every array.
    """

    x: Any
    y: Any
    num_samples: int


class Source(Protocol):
    """Where batches come from."""

    @property
    def num_batches(self) -> int | None:
        """Of an epoch, where that is known."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Return the batches of an epoch, the same on every rank."""


class Samples:
    """Arrays, or a dataset with a length, of which every rank has all.

    Args:
        data: (x, y), or a `torch.utils.data.Dataset` of such pairs.
        batch_size: samples of a step.
        shuffle: take them in a new order in every epoch, the same on all ranks.
        seed: of the order.
        drop_last: leave out the last batch if it is smaller.

    Raises:
        InvalidType: the data are none of this.
        InvalidArgument: arrays have different lengths, or there is no batch.
    """

    def __init__(self, data: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        if type(batch_size) is not int or batch_size < 1:
            raise InvalidArgument(f"batch_size is 1 or more, not {batch_size!r}")
        self._dataset = data if isinstance(data, Dataset) else None
        if self._dataset is None:
            self._arrays = _as_pair(pytree.tree_map(_as_tensor, data))
            lengths = {len(leaf) for leaf in pytree.tree_leaves(self._arrays) if isinstance(leaf, torch.Tensor)}
            if len(lengths) != 1:
                raise InvalidArgument(f"all arrays have as many samples; these have {sorted(lengths)}")
            (self.num_samples,) = lengths
        else:
            self.num_samples = len(self._dataset)  # type: ignore[arg-type]
        self._batch_size = batch_size
        self._shuffle, self._seed = shuffle, seed
        whole, rest = divmod(self.num_samples, batch_size)
        self.last_size = rest if rest and not drop_last else batch_size
        self.num_batches = whole + bool(rest and not drop_last)
        if not self.num_batches:
            raise InvalidArgument(
                f"{self.num_samples} samples make no batch of {batch_size}" + (" (drop_last)" if drop_last else "")
            )

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        order = torch.arange(self.num_samples)
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            order = torch.randperm(self.num_samples, generator=generator)
        for number in range(self.num_batches):
            chosen = order[number * self._batch_size : (number + 1) * self._batch_size]
            x, y = self._take(chosen)
            yield Batch(x, y, len(chosen))

    def fingerprint(self) -> tuple[int, int]:
        """Return what tells data of one rank from those of another: their number, and a sum over the first ones."""
        x, y = self._take(torch.arange(min(4, self.num_samples)))
        total = 0
        for leaf in pytree.tree_leaves((x, y)):
            if isinstance(leaf, torch.Tensor):
                total = zlib.crc32(leaf.contiguous().view(torch.uint8).numpy().tobytes(), total)
        return self.num_samples, total

    def _take(self, chosen: torch.Tensor) -> tuple[Any, Any]:
        if self._dataset is not None:
            return _as_pair(default_collate([self._dataset[int(number)] for number in chosen]))
        return _as_pair(
            pytree.tree_map(lambda leaf: leaf[chosen] if isinstance(leaf, torch.Tensor) else leaf, self._arrays)
        )


class Stream:
    """Anything that gives batches (x, y), such as a `torch.utils.data.DataLoader`: rank 0 reads it, and the others get
    what it read.

    Args:
        data: is gone through once an epoch.
        comm: of all ranks.
    """

    num_batches: int | None = None

    def __init__(self, data: Iterable[Any], comm: Communicator) -> None:
        self._data = data
        self._comm = comm

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        read = iter(self._data) if self._comm.rank == 0 else iter(())
        while True:
            given: Any = next(read, None)
            if given is not None:
                given = pytree.tree_map(_as_tensor, given)
            given = self._comm.broadcast_object(given, 0)
            if given is None:
                return
            x, y = _as_pair(given)
            sizes = {len(leaf) for leaf in pytree.tree_leaves((x, y)) if isinstance(leaf, torch.Tensor)}
            if len(sizes) != 1:
                raise InvalidArgument(f"all arrays of a batch have as many samples; these have {sorted(sizes)}")
            yield Batch(x, y, sizes.pop())


def source_of(
    data: Any, comm: Communicator, *, batch_size: int, shuffle: bool, seed: int, drop_last: bool
) -> Samples | Stream:
    """Return where batches come from; called by all ranks.

    Args:
        data: (x, y) of NumPy arrays or tensors, where x may be a tuple of them or a dictionary by the names that the
            model takes; a `torch.utils.data.Dataset` of such pairs; or an iterable of batches, which rank 0 reads.

    Raises:
        InvalidType: it is none of these.
        InvalidArgument: ranks have different data, or there is no batch.
    """
    if isinstance(data, Dataset) and not hasattr(data, "__len__") and not hasattr(data, "__iter__"):
        raise InvalidType("a dataset has a length or can be iterated over; this one has neither")
    is_stream = not isinstance(data, (tuple, list, Mapping, np.ndarray, torch.Tensor)) and not (
        isinstance(data, Dataset) and hasattr(data, "__len__")
    )
    if is_stream:
        if not isinstance(data, Iterable):
            raise InvalidType(
                "data are (x, y) of arrays, a torch.utils.data.Dataset, or an iterable of batches, not "
                f"{type(data).__name__}"
            )
        return Stream(data, comm)
    samples = Samples(data, batch_size, shuffle, seed, drop_last)
    for rank, other in enumerate(comm.all_gather_object(samples.fingerprint())):
        if other != samples.fingerprint():
            raise InvalidArgument(f"rank {comm.rank} and rank {rank} have different data: all have to have the same")
    return samples


def micro_batches_of(
    batch: Batch,
    names: Sequence[str],
    replica: int,
    num_replicas: int,
    num_micro_batches: int,
    weigh: Weigh | None = None,
    loss_is_mean: bool = True,
) -> tuple[list[MicroBatch], list[float]]:
    """Cut a batch into micro-batches of sizes as equal as can be, replica after replica.

    Args:
        batch: of all replicas.
        names: of what the model takes.
        replica: whose micro-batches are wanted.
        num_replicas, num_micro_batches: how many there are, of each replica.
        weigh: how many items the mean in the loss is over, of a target; None: samples.
        loss_is_mean: whether it is a mean.

    Returns:
        Those of the replica, and the weights of all, in order: each one's part of the items; 1 if the loss is a sum.

    Raises:
        InvalidArgument: there are fewer samples than micro-batches.
    """
    total = num_replicas * num_micro_batches
    if batch.num_samples < total:
        raise InvalidArgument(
            f"a batch of {batch.num_samples} samples cannot be cut into {total} micro-batches ({num_replicas} replicas "
            f"x {num_micro_batches}): choose a larger batch_size, fewer micro-batches, or drop_last=True"
        )
    bounds = [batch.num_samples * number // total for number in range(total + 1)]
    targets = [_part(batch.y, first, last) for first, last in pairwise(bounds)]
    counts = [float(last - first) for first, last in pairwise(bounds)]
    if weigh is not None:
        counts = [float(weigh(target)) for target in targets]
    whole = sum(counts)
    weights = [(count / whole if whole else 0.0) if loss_is_mean else 1.0 for count in counts]
    inputs = _by_name(batch.x, names)
    mine = range(replica * num_micro_batches, (replica + 1) * num_micro_batches)
    return [
        MicroBatch(
            {name: _part(value, bounds[number], bounds[number + 1]) for name, value in inputs.items()},
            targets[number],
            weights[number],
        )
        for number in mine
    ], weights


def padded(batch: Batch, least: int) -> Batch:
    """Return a batch of at least so many samples: its last one is repeated, where there are too few."""
    missing = least - batch.num_samples
    if missing <= 0:
        return batch
    x, y = pytree.tree_map_only(
        torch.Tensor, lambda leaf: torch.cat([leaf, leaf[-1:].expand(missing, *leaf.shape[1:])]), (batch.x, batch.y)
    )
    return Batch(x, y, least)


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


def _as_tensor(leaf: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(leaf)) if isinstance(leaf, np.ndarray) else leaf


def _as_pair(data: Any) -> tuple[Any, Any]:
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    if isinstance(data, (tuple, list)) and len(data) == 1:
        return data[0], None
    if isinstance(data, (torch.Tensor, Mapping)):
        return data, None
    raise InvalidType("data are pairs (x, y): what the model takes, and what the loss takes beside its output")
