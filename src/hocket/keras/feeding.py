"""Batches of what `model.fit` takes for data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import keras
import torch
from keras.src.backend.torch.trainer import TorchEpochIterator
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils, is_grain_dataset, is_tf_dataset
from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidType
from hocket.train import Batch, source_of
from hocket.train.data.batches import Samples, Source, Stream
from hocket.train.on_rank_0 import on_rank_0


def data_of(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Return data as one thing: arrays as (x, (y, sample_weight)), or as many of these as there are; anything else as
    it came.

    Raises:
        InvalidArgument: what is given besides `x` does not go with it; says what is right.
        InvalidType: there is no `x`.
    """
    if x is None:
        raise InvalidType("x is what the model takes: arrays, or a dataset; it is None")
    if y is None and isinstance(x, (tuple, list)) and not _are_batches(x):
        if len(x) not in (1, 2, 3):
            raise InvalidArgument(f"data are (x, y) or (x, y, sample_weight); got a tuple of {len(x)} items")
        if sample_weight is not None and len(x) == 3:
            raise InvalidArgument("sample_weight is given twice: in (x, y, sample_weight), and by itself")
        x, y, weight = (*x, None, None)[:3]
        sample_weight = sample_weight if weight is None else weight
    elif y is None and not _is_array(x):
        if sample_weight is not None:
            raise InvalidArgument(
                f"sample_weight goes with arrays; of {type(x).__name__} it is the third of what a batch has"
            )
        return x
    if y is None and sample_weight is not None:
        raise InvalidArgument("sample_weight is given without y, whose losses it weighs")
    return _alone(x), tuple(each for each in (y, sample_weight) if each is not None)


def with_class_weight(data: Any, class_weight: Any) -> Any:
    """Return arrays with weights of samples instead of those of classes; anything else as it came.

    Raises:
        InvalidArgument: there are weights of samples already, or several outputs or none.
    """
    if class_weight is None or not isinstance(data, tuple):
        return data
    x, target = data
    if len(target) == 2:
        raise InvalidArgument("class_weight and sample_weight are both given; weights of samples alone say it all")
    if not target or keras.tree.is_nested(target[0]):
        raise InvalidArgument("class_weight is for models with one output, whose y are the numbers of classes")
    return x, (target[0], data_adapter_utils.class_weight_to_sample_weights(target[0], class_weight))


def batch_size_of(data: Any, wanted: int | None, steps: int | None) -> int:
    """Return how many samples a batch has: as wanted, or of arrays so many that they make that number of steps, or
    32."""
    if wanted is not None:
        return wanted
    if steps is None or not isinstance(data, tuple):
        return 32
    return max(1, -(-len(keras.tree.flatten(data[0])[0]) // steps))


def split_off(data: Any, share: float) -> tuple[Any, Any]:
    """Return data without the last of their samples, and those, as `model.fit` splits them by `validation_split`.

    Raises:
        InvalidArgument: the data are no arrays, or the share leaves nothing.
    """
    if not isinstance(share, (int, float)) or not 0 < share < 1:
        raise InvalidArgument(f"validation_split is a share between 0 and 1, not {share!r}")
    if not isinstance(data, tuple):
        raise InvalidArgument(f"validation_split is for arrays, not {type(data).__name__}: give validation_data")
    x, target = data
    try:
        (first, first_target), (last, last_target) = array_slicing.train_validation_split(
            (x, target), validation_split=share
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    return (first, tuple(first_target)), (last, tuple(last_target))


@dataclass(frozen=True)
class Reading:
    """How data are read.

    Args:
        batch_size: samples of a batch; of arrays and datasets of samples.
        shuffle: arrays and datasets of samples by sample, a PyDataset by batch.
        seed, drop_last: of arrays and datasets of samples.
        steps: batches of an epoch; None: all.
        class_weight: of data that are not arrays.
        begins_anew: whether every epoch begins with the first batch, as in evaluation, also where `steps` leaves some.
    """

    batch_size: int
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    steps: int | None = None
    class_weight: Mapping[int, float] | None = None
    begins_anew: bool = False


def feed(data: Any, comm: Communicator, reading: Reading) -> Samples | Stream:
    """Return a source of batches; called by all ranks. Use `portions_of` for epochs of `reading.steps` batches.

    Args:
        data: of `data_of`.
        comm: of all ranks.
        reading: how the data are read.

    Raises:
        InvalidArgument, InvalidType: the data cannot be read; raised on every rank.
    """
    takes_classes = isinstance(data, (tuple, keras.utils.PyDataset)) or is_tf_dataset(data)
    if reading.class_weight is not None and not takes_classes:
        raise InvalidArgument(
            f"class_weight is for arrays and keras.utils.PyDataset, not {type(data).__name__}: have its batches be "
            "(x, y, sample_weight)"
        )
    if isinstance(data, keras.utils.PyDataset | torch.utils.data.DataLoader | GeneratorType) or (
        is_tf_dataset(data) or is_grain_dataset(data)
    ):
        return _KerasStream(data, comm, reading)
    return source_of(
        data if isinstance(data, tuple) else _as_pairs(data),
        comm,
        batch_size=reading.batch_size,
        shuffle=reading.shuffle,
        seed=reading.seed,
        drop_last=reading.drop_last,
    )


def portions_of(source: Samples | Stream, reading: Reading) -> Source:
    """Return a source of `feed` whose epochs have `reading.steps` batches."""
    if reading.steps is None or isinstance(source, _KerasStream):
        return source
    return _Portions(source, reading.steps, reading.begins_anew)


class _KerasStream(Stream):
    """What Keras itself goes through: rank 0 does, by Keras' own iterator, and the others get what it read."""

    def __init__(self, data: Any, comm: Communicator, reading: Reading) -> None:
        super().__init__((), comm)
        self._begins_anew = reading.begins_anew
        can_shuffle = isinstance(data, keras.utils.PyDataset) and data.num_batches is not None

        def make() -> int | None:
            try:
                self._iterator = TorchEpochIterator(
                    data,
                    steps_per_epoch=reading.steps,
                    shuffle=reading.shuffle and can_shuffle,
                    class_weight=reading.class_weight,
                )
            except ValueError as error:  # what Keras says of such data
                raise InvalidArgument(str(error)) from None
            if not reading.begins_anew:
                self._iterator.reset()  # Keras does so when a training begins, which tells a PyDataset
            count: int | None = self._iterator.num_batches
            return count

        self.num_batches = on_rank_0(comm, make)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Raises:
            Exception: what reading them raised, on every rank.
        """
        self._data = self._read()
        return super().batches(epoch, first)

    def _read(self) -> Iterator[Any]:
        if self._begins_anew:
            self._iterator.reset()
        for _, _, batches in self._iterator:
            yield from map(_as_pairs, batches)


class _Portions:
    """So many batches of another source an epoch, as Keras takes them: an epoch goes on where the last one ended, and
    ends early where the source does."""

    def __init__(self, source: Source, steps: int, begins_anew: bool) -> None:
        self._source, self._steps, self._begins_anew = source, steps, begins_anew
        self.num_batches: int | None = steps
        self._num_rounds = 0  # of the source, that were begun
        self._left: Iterator[Batch] = iter(())  # of the latest one

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        if self._begins_anew:
            self._num_rounds, self._left = 0, iter(())
        count = 0
        while count < self._steps:
            batch = next(self._left, None)
            if batch is None and count:
                warnings.warn(
                    f"the data ended after {count} of the {self._steps} batches that an epoch is to have", stacklevel=2
                )
                return
            if batch is None:
                self._left = self._source.batches(self._num_rounds)
                self._num_rounds += 1
                batch = next(self._left, None)
                if batch is None:
                    return
            count += 1
            yield batch


def _alone(x: Any) -> Any:
    """What a model with one input takes, where it is in a list of one."""
    return x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x


def _are_batches(data: Any) -> bool:
    return isinstance(data, list) and bool(data) and all(isinstance(each, tuple) for each in data)


def _is_array(data: Any) -> bool:
    return not _are_batches(data) and not isinstance(data, torch.utils.data.Dataset) and can_convert_arrays((data,))


def _as_pairs(data: Any) -> Any:
    """Data whose batches and samples are (x, ()), (x, (y,)) or (x, (y, sample_weight))."""
    if _are_batches(data):
        return [_as_pairs(each) for each in data]
    if isinstance(data, (tuple, list)):
        if len(data) not in (1, 2, 3):
            raise InvalidArgument(f"data are (x,), (x, y) or (x, y, sample_weight); got a tuple of {len(data)} items")
        x, y, weight = (*data, None, None)[:3]
        return _alone(x), () if y is None else (y,) if weight is None else (y, weight)
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        return _Pairs(data)
    if isinstance(data, dict | torch.Tensor):
        return data, ()
    return _PairStream(data) if isinstance(data, Iterable) else data


class _Pairs(torch.utils.data.Dataset[Any]):
    """Samples as such pairs."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> Any:
        return _as_pairs(self._data[number])


class _PairStream:
    """Batches of a stream as such pairs."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data

    def __iter__(self) -> Any:
        return (_as_pairs(batch) for batch in self._data)
