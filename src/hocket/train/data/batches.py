"""Batches of the user's data, equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, IterableDataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidType
from hocket.train.checks import check_alike, check_count, check_seed
from hocket.train.data.checksum import checksum
from hocket.train.data.randomness import random_key, seeded
from hocket.train.on_rank_0 import on_rank_0


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples of one step, over all replicas.

    Args:
        x: inputs of the model: a tensor, a tuple of tensors, or a dictionary of tensors by name.
        y: the target, which is the second argument of the loss; None if the data have no target.
        num_samples: length of the first axis of every tensor.

    Examples:
        >>> source = hk.train.source_of(
        ...     (np.zeros((6, 3)), np.zeros(6)), comm, batch_size=4, shuffle=False, seed=0, drop_last=False
        ... )
        >>> [batch.num_samples for batch in source.batches(epoch=0)]
        [4, 2]
    """

    x: Any
    y: Any
    num_samples: int


class Source(Protocol):
    """A source of batches."""

    @property
    def num_batches(self) -> int | None:
        """Number of batches of an epoch; None if it is not known."""

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch from index `first` on, equal on all ranks."""


class Samples:
    """Arrays, or a dataset with a length; every rank has all samples.

    Args:
        data: (x, y), or a `torch.utils.data.Dataset` of such pairs. The random numbers of torch, NumPy and Python that
            reading a sample draws are derived from seed, epoch and batch.
        batch_size: samples of a step.
        shuffle: take the samples in a new order in every epoch; the order is equal on all ranks.
        seed: seed of the order, and of the random numbers.
        drop_last: leave out the last batch if it is smaller.

    Raises:
        InvalidType: `data` is something else.
        InvalidArgument: the arrays have different lengths, or the samples do not make a batch.
    """

    def __init__(self, data: Any, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> None:
        check_count("batch_size", batch_size)
        self._dataset = data if isinstance(data, Dataset) else None
        if self._dataset is None:
            self._arrays = _as_pair(_as_tensors(data))
            self.num_samples = _num_samples(self._arrays)
        else:
            self.num_samples = len(self._dataset)  # type: ignore[arg-type]
        self._batch_size = batch_size
        self._shuffle, self._seed = shuffle, seed
        whole, rest = divmod(self.num_samples, batch_size)
        self.last_size = rest if rest and not drop_last else batch_size
        self.num_batches = whole + bool(rest and not drop_last)
        if not self.num_batches:
            raise InvalidArgument(
                f"{self.num_samples} samples do not make a batch of {batch_size}"
                + (" (drop_last): choose a smaller batch_size" if drop_last else ": the data must have samples")
            )

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        order = torch.arange(self.num_samples)
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            order = torch.randperm(self.num_samples, generator=generator)
        for number in range(first, self.num_batches):
            chosen = order[number * self._batch_size : (number + 1) * self._batch_size]
            x, y = self._take(chosen, random_key(self._seed, epoch, number, 0))
            yield Batch(x, y, len(chosen))

    def fingerprint(self) -> tuple[int, int]:
        """Return the number of samples and a checksum of the arrays, or of the first samples of a dataset. Ranks with
        different data have different fingerprints."""
        summed = self._arrays if self._dataset is None else self._take(torch.arange(min(4, self.num_samples)), 0)
        total = 0
        for leaf in pytree.tree_leaves(summed):
            if isinstance(leaf, torch.Tensor):
                total = checksum(leaf, total)
        return self.num_samples, total

    def _take(self, chosen: torch.Tensor, key: int) -> tuple[Any, Any]:
        if self._dataset is not None:
            with seeded(key):  # a dataset may draw random numbers; all ranks must get the same samples
                return _as_pair(default_collate([self._dataset[number] for number in chosen.tolist()]))
        return _as_pair(
            pytree.tree_map(lambda leaf: leaf[chosen] if isinstance(leaf, torch.Tensor) else leaf, self._arrays)
        )


class Stream:
    """An iterable of batches (x, y), such as a `torch.utils.data.DataLoader`: rank 0 reads it and sends the batches.

    Args:
        data: iterated over once in each epoch.
        comm: a communicator of all ranks.
    """

    num_batches: int | None = None

    def __init__(self, data: Iterable[Any], comm: Communicator) -> None:
        self._data = data
        self._comm = comm

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Raises:
            Exception: reading raised it on rank 0; raised on every rank.
        """
        iterator: Iterator[Any] | None = None

        def next_batch() -> Batch | None:
            nonlocal iterator
            if iterator is None:
                iterator = islice(iter(self._data), first, None)
            item: Any = next(iterator, None)
            if item is None:
                return None
            x, y = _as_pair(_as_tensors(item))
            num_samples = _num_samples((x, y))
            if not num_samples:
                raise InvalidArgument("the data gave a batch of 0 samples; every batch must have 1 or more")
            return Batch(x, y, num_samples)

        while (batch := on_rank_0(self._comm, next_batch)) is not None:
            yield batch


def samples_of(data: Any, *, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> Samples | None:
    """Return arrays or a dataset as `Samples`; None for an iterable of batches, which rank 0 reads.

    Args:
        data: (x, y) of NumPy arrays or tensors, where x may be a tuple of arrays or a dictionary by the names of the
            model's inputs; a `torch.utils.data.Dataset` of such pairs; or an iterable of batches, such as a list of
            pairs.
        batch_size, shuffle, seed, drop_last: see `Samples`.

    Raises:
        InvalidType: `data` is something else.
        InvalidArgument: the arrays have different lengths, the samples do not make a batch, or a DataLoader reads a
            part of the data only.
    """
    if isinstance(data, Dataset) and not hasattr(data, "__len__") and not hasattr(data, "__iter__"):
        raise InvalidType(f"a dataset must have __len__ or __iter__; {type(data).__name__} has neither")
    has_samples = isinstance(data, Dataset) and hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    is_stream = not isinstance(data, (tuple, list, Mapping, np.ndarray, torch.Tensor)) and not has_samples
    if isinstance(data, list) and data and all(isinstance(each, (tuple, list)) for each in data):
        is_stream = True
    if is_stream:
        if not isinstance(data, Iterable):
            raise InvalidType(
                "data must be (x, y) of arrays, a torch.utils.data.Dataset, or an iterable of batches, not "
                f"{type(data).__name__}"
            )
        if isinstance(sampler := getattr(data, "sampler", None), DistributedSampler) and sampler.num_replicas > 1:
            raise InvalidArgument(
                f"the DataLoader has a DistributedSampler, which gives 1 of {sampler.num_replicas} parts of the data, "
                "but rank 0 reads for all ranks: remove the sampler, and pass shuffle=True to the DataLoader"
            )
        return None
    return Samples(data, batch_size, shuffle, seed, drop_last)


def source_of(
    data: Any, comm: Communicator, *, batch_size: int, shuffle: bool, seed: int, drop_last: bool
) -> Samples | Stream:
    """Return a source of batches; called by all ranks.

    Args:
        data: (x, y) of arrays or tensors, a `torch.utils.data.Dataset` of such pairs, or an iterable of batches; equal
            on all ranks, except for an iterable, which rank 0 reads.
        comm: a communicator of all ranks.
        batch_size: samples of a step, over all replicas.
        shuffle: take the samples in a new order in every epoch.
        seed: seed of the order, and of random numbers that a dataset draws.
        drop_last: leave out the last batch if it is smaller.

    Raises:
        InvalidType, InvalidArgument: the data cannot be used, or ranks have different data.

    Examples:
        >>> x, y = np.arange(10.0).reshape(5, 2), np.zeros(5)
        >>> source = hk.train.source_of((x, y), comm, batch_size=2, shuffle=False, seed=0, drop_last=True)
        >>> source.num_batches
        2
        >>> next(source.batches(epoch=0)).x.tolist()
        [[0.0, 1.0], [2.0, 3.0]]
    """
    samples = samples_of(data, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
    if samples is None:
        return Stream(data, comm)
    own = samples.fingerprint()
    for rank, other in enumerate(comm.all_gather_object(own)):
        if other != own:
            raise InvalidArgument(f"rank {comm.rank} and rank {rank} have different data: pass equal data on all ranks")
    return samples


def sources_of(
    data: Any,
    validation_data: Any,
    comm: Communicator,
    *,
    batch_size: int,
    shuffle: bool,
    seed: int,
    drop_last: bool,
) -> tuple[Samples | Stream, Samples | Stream | None]:
    """Return the sources of a training and of its validation, or None without `validation_data`; called by all ranks.

    Args:
        data, validation_data: see `source_of`. The validation is neither shuffled nor does it drop a batch.
        comm, batch_size, shuffle, seed, drop_last: see `source_of`.

    Raises:
        InvalidType, InvalidArgument: see `source_of`; or arguments differ between ranks.

    Examples:
        >>> x, y = np.zeros((6, 3)), np.zeros(6)
        >>> source, validation = hk.train.sources_of(
        ...     (x, y), (x[:1], y[:1]), comm, batch_size=2, shuffle=True, seed=0, drop_last=False
        ... )
        >>> source.num_batches, validation.num_batches
        (3, 1)
    """
    check_seed(seed)
    check_alike(
        comm,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        validates=validation_data is not None,
    )
    source = source_of(data, comm, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
    if validation_data is None:
        return source, None
    return source, source_of(validation_data, comm, batch_size=batch_size, shuffle=False, seed=seed, drop_last=False)


def first_example(source: Samples | Stream) -> Any:
    """Return the model's inputs in the first batch; None for a stream, which cannot be read twice."""
    return None if isinstance(source, Stream) else next(source.batches(0)).x


def _as_tensors(data: Any) -> Any:
    """Convert all arrays to tensors. Numbers outside of lists stay: an input of a model may be a number."""
    _check_lists(data)
    return pytree.tree_map(_as_tensor, data)


def _check_lists(data: Any) -> None:
    """Refuse lists of samples: they would be cut along the wrong axis."""
    if isinstance(data, list) and any(isinstance(each, (int, float)) for each in data):
        raise InvalidType(
            f"data must hold arrays, not a list of {len(data)} numbers: convert it with numpy.asarray(...)"
        )
    for each in data.values() if isinstance(data, Mapping) else data if isinstance(data, (tuple, list)) else ():
        _check_lists(each)


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, (torch.Tensor, np.generic)) or not hasattr(leaf, "__array__"):
        return leaf
    array = np.ascontiguousarray(leaf)
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise InvalidType(f"data must hold arrays of types that torch has, not of {array.dtype}") from None


def _num_samples(data: Any) -> int:
    """Return the length of the first axis, which must be equal in all arrays."""
    shapes = {tuple(leaf.shape) for leaf in pytree.tree_leaves(data) if isinstance(leaf, torch.Tensor)}
    if not shapes or () in shapes:
        raise InvalidType(
            "data must be arrays or tensors whose first axis counts samples; "
            + ("one of these is a single number" if shapes else "these hold no array")
        )
    lengths = {shape[0] for shape in shapes}
    if len(lengths) != 1:
        raise InvalidArgument(f"all arrays must have equally many samples; these have {sorted(lengths)}")
    return lengths.pop()


def _as_pair(data: Any) -> tuple[Any, Any]:
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    if isinstance(data, (tuple, list)) and len(data) == 1:
        return data[0], None
    if isinstance(data, (torch.Tensor, Mapping)):
        return data, None
    raise InvalidType(
        f"data must be pairs (x, y) of the model's input and the target of the loss, not a {type(data).__name__}"
        + (f" of {len(data)} items" if isinstance(data, (tuple, list)) else "")
    )
