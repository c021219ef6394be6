"""Data as batches that all ranks agree about."""

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

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch from a `first` one on, the same on every rank."""


class Samples:
    """Arrays, or a dataset with a length, of which every rank has all.

    Args:
        data: (x, y), or a `torch.utils.data.Dataset` of such pairs. Random numbers of torch, NumPy and Python that its
            samples draw follow from seed, epoch and batch.
        batch_size: samples of a step.
        shuffle: take them in a new order in every epoch, the same on all ranks.
        seed: of the order, and of random numbers.
        drop_last: leave out the last batch if it is smaller.

    Raises:
        InvalidType: the data are none of this.
        InvalidArgument: arrays have different lengths, or there is no batch.
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
                f"{self.num_samples} samples make no batch of {batch_size}" + (" (drop_last)" if drop_last else "")
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
        """Return what tells data of one rank from those of another: their number, and a sum over arrays, or over the
        first samples of a dataset."""
        read = self._arrays if self._dataset is None else self._take(torch.arange(min(4, self.num_samples)), 0)
        total = 0
        for leaf in pytree.tree_leaves(read):
            if isinstance(leaf, torch.Tensor):
                total = checksum(leaf, total)
        return self.num_samples, total

    def _take(self, chosen: torch.Tensor, key: int) -> tuple[Any, Any]:
        if self._dataset is not None:
            with seeded(key):  # every rank makes the same of them
                return _as_pair(default_collate([self._dataset[number] for number in chosen.tolist()]))
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

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Raises:
            Exception: what reading them raised, on every rank.
        """
        read: Iterator[Any] | None = None

        def next_batch() -> Batch | None:
            nonlocal read
            if read is None:
                read = islice(iter(self._data), first, None)
            given: Any = next(read, None)
            if given is None:
                return None
            x, y = _as_pair(_as_tensors(given))
            num_samples = _num_samples((x, y))
            if not num_samples:
                raise InvalidArgument("the data gave a batch of no samples")
            return Batch(x, y, num_samples)

        while (batch := on_rank_0(self._comm, next_batch)) is not None:
            yield batch


def samples_of(data: Any, *, batch_size: int, shuffle: bool, seed: int, drop_last: bool) -> Samples | None:
    """Return data of which every rank has all; None of an iterable of batches, which rank 0 reads.

    Args:
        data: (x, y) of NumPy arrays or tensors, where x may be a tuple of them or a dictionary by the names that the
            model takes; a `torch.utils.data.Dataset` of such pairs; or an iterable of batches, such as a list of
            pairs.

    Raises:
        InvalidType: it is none of these.
        InvalidArgument: arrays have different lengths, there is no batch, or a DataLoader reads a part of the data.
    """
    if isinstance(data, Dataset) and not hasattr(data, "__len__") and not hasattr(data, "__iter__"):
        raise InvalidType("a dataset has a length or can be iterated over; this one has neither")
    has_samples = isinstance(data, Dataset) and hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    is_stream = not isinstance(data, (tuple, list, Mapping, np.ndarray, torch.Tensor)) and not has_samples
    if isinstance(data, list) and data and all(isinstance(each, (tuple, list)) for each in data):
        is_stream = True
    if is_stream:
        if not isinstance(data, Iterable):
            raise InvalidType(
                "data are (x, y) of arrays, a torch.utils.data.Dataset, or an iterable of batches, not "
                f"{type(data).__name__}"
            )
        if isinstance(sampler := getattr(data, "sampler", None), DistributedSampler) and sampler.num_replicas > 1:
            raise InvalidArgument(
                f"the DataLoader has a DistributedSampler, which gives 1 of {sampler.num_replicas} parts of the data, "
                "but rank 0 reads for all ranks: leave the sampler out, and pass shuffle=True to the DataLoader"
            )
        return None
    return Samples(data, batch_size, shuffle, seed, drop_last)


def source_of(
    data: Any, comm: Communicator, *, batch_size: int, shuffle: bool, seed: int, drop_last: bool
) -> Samples | Stream:
    """Return where batches come from; called by all ranks, with what `samples_of` takes.

    Raises:
        InvalidType, InvalidArgument: as of `samples_of`; or ranks have different data.
    """
    samples = samples_of(data, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last)
    if samples is None:
        return Stream(data, comm)
    own = samples.fingerprint()
    for rank, other in enumerate(comm.all_gather_object(own)):
        if other != own:
            raise InvalidArgument(f"rank {comm.rank} and rank {rank} have different data: all have to have the same")
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
    """Return where batches of a training come from, and those of its validation, if there is one. Raises as
    `source_of`."""
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
    """Return what the model takes of the first batch; None of a stream, which cannot be read twice."""
    return None if isinstance(source, Stream) else next(source.batches(0)).x


def _as_tensors(data: Any) -> Any:
    """Data with all arrays as tensors; numbers outside of lists stay, as what a model takes may be one."""
    _check_lists(data)
    return pytree.tree_map(_as_tensor, data)


def _check_lists(data: Any) -> None:
    """Refuse samples in lists: nobody would take the right ones of them."""
    if isinstance(data, list) and any(isinstance(each, (int, float)) for each in data):
        raise InvalidType(
            f"data hold a list of {len(data)} numbers, where arrays are to be: make it one, numpy.asarray(...)"
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
        raise InvalidType(f"data hold an array of {array.dtype}, which torch has no tensors of") from None


def _num_samples(data: Any) -> int:
    """The length of all arrays, along their first axes."""
    shapes = {tuple(leaf.shape) for leaf in pytree.tree_leaves(data) if isinstance(leaf, torch.Tensor)}
    if not shapes or () in shapes:
        raise InvalidType(
            "data are arrays or tensors whose first axis counts samples; "
            + ("one of these is a single number" if shapes else "there is none")
        )
    lengths = {shape[0] for shape in shapes}
    if len(lengths) != 1:
        raise InvalidArgument(f"all arrays have as many samples; these have {sorted(lengths)}")
    return lengths.pop()


def _as_pair(data: Any) -> tuple[Any, Any]:
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return data[0], data[1]
    if isinstance(data, (tuple, list)) and len(data) == 1:
        return data[0], None
    if isinstance(data, (torch.Tensor, Mapping)):
        return data, None
    raise InvalidType("data are pairs (x, y): what the model takes, and what the loss takes beside its output")
