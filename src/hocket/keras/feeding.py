"""Batches from the data that `model.fit` takes."""

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
    """Return the data as one object: arrays as (x, ()), (x, (y,)) or (x, (y, sample_weight)); other data unchanged.

    Raises:
        InvalidArgument: `y` or `sample_weight` does not fit `x`; the message says what would be right.
        InvalidType: `x` is None.
    """
    if x is None:
        raise InvalidType("x must be the inputs of the model, arrays or a dataset, not None")
    if y is None and isinstance(x, (tuple, list)) and not _are_batches(x):
        if len(x) not in (1, 2, 3):
            raise InvalidArgument(f"data must be (x, y) or (x, y, sample_weight); got a tuple of {len(x)} items")
        if sample_weight is not None and len(x) == 3:
            raise InvalidArgument("sample_weight is given twice, in (x, y, sample_weight) and by name: pass it once")
        x, y, weight = (*x, None, None)[:3]
        sample_weight = sample_weight if weight is None else weight
    elif y is None and not _is_array(x):
        if sample_weight is not None:
            raise InvalidArgument(
                f"sample_weight is for arrays only; batches of {type(x).__name__} must be (x, y, sample_weight)"
            )
        return x
    if y is None and sample_weight is not None:
        raise InvalidArgument("sample_weight needs y, whose losses it weighs: pass y")
    return _alone(x), tuple(each for each in (y, sample_weight) if each is not None)


def with_class_weight(data: Any, class_weight: Any) -> Any:
    """Return arrays with the sample weights that follow from class weights; other data unchanged.

    Raises:
        InvalidArgument: the data have sample weights already, or the target is not one array.
    """
    if class_weight is None or not isinstance(data, tuple):
        return data
    x, target = data
    if len(target) == 2:
        raise InvalidArgument("class_weight and sample_weight are both given: pass sample_weight only")
    if not target or keras.tree.is_nested(target[0]):
        raise InvalidArgument("class_weight is for models with one output, where y must be an array of class numbers")
    return x, (target[0], data_adapter_utils.class_weight_to_sample_weights(target[0], class_weight))


def batch_size_of(data: Any, requested: int | None, steps: int | None) -> int:
    """Return the batch size: the requested one; for arrays and a number of steps, the samples divided by the steps;
    else 32."""
    if requested is not None:
        return requested
    if steps is None or not isinstance(data, tuple):
        return 32
    return max(1, -(-len(keras.tree.flatten(data[0])[0]) // steps))


def split_off(data: Any, share: float) -> tuple[Any, Any]:
    """Split the last samples off, as `model.fit` does by `validation_split`; return both parts.

    Raises:
        InvalidArgument: the data are not arrays, or a part would be empty.
    """
    if not isinstance(share, (int, float)) or not 0 < share < 1:
        raise InvalidArgument(f"validation_split must be a number between 0 and 1, not {share!r}")
    if not isinstance(data, tuple):
        raise InvalidArgument(f"validation_split is for arrays, not {type(data).__name__}: pass validation_data")
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
    """Options of reading data.

    Args:
        batch_size: samples of a batch, for arrays and datasets of samples.
        shuffle: new order in every epoch: of samples for arrays and datasets of samples, of batches for a PyDataset.
        seed, drop_last: see `hocket.train.source_of`; for arrays and datasets of samples.
        steps: batches of an epoch; None: all.
        class_weight: class weights, for data that are not arrays.
        begins_anew: True: every epoch begins with the first batch, as in evaluation; False: with `steps`, an epoch
            continues where the previous one ended.
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
        data: a result of `data_of`.
        comm: a communicator of all ranks.
        reading: options of reading.

    Raises:
        InvalidArgument, InvalidType: the data cannot be read; raised on every rank.
    """
    takes_classes = isinstance(data, (tuple, keras.utils.PyDataset)) or is_tf_dataset(data)
    if reading.class_weight is not None and not takes_classes:
        raise InvalidArgument(
            f"class_weight is for arrays and keras.utils.PyDataset, not {type(data).__name__}: make its batches "
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
    """Data that Keras iterates over: rank 0 reads them by Keras' own iterator and sends the batches."""

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
            except ValueError as error:  # Keras' message names the problem of the data
                raise InvalidArgument(str(error)) from None
            if not reading.begins_anew:
                self._iterator.reset()  # as Keras does when a training begins: a PyDataset is notified
            count: int | None = self._iterator.num_batches
            return count

        self.num_batches = on_rank_0(comm, make)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch.

        Raises:
            Exception: reading raised it on rank 0; raised on every rank.
        """
        self._data = self._read()
        return super().batches(epoch, first)

    def _read(self) -> Iterator[Any]:
        if self._begins_anew:
            self._iterator.reset()
        for _, _, batches in self._iterator:
            yield from map(_as_pairs, batches)


class _Portions:
    """Epochs of a fixed number of batches of another source, as in Keras: an epoch continues where the previous one
    ended, and is shorter if the source ends."""

    def __init__(self, source: Source, steps: int, begins_anew: bool) -> None:
        self._source, self._steps, self._begins_anew = source, steps, begins_anew
        self.num_batches: int | None = steps
        self._num_rounds = 0  # passes over the source so far
        self._left: Iterator[Batch] = iter(())  # remaining batches of the latest pass

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch."""
        if self._begins_anew:
            self._num_rounds, self._left = 0, iter(())
        count = 0
        while count < self._steps:
            batch = next(self._left, None)
            if batch is None and count:
                warnings.warn(f"the data ended after {count} batches; an epoch should have {self._steps}", stacklevel=2)
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
    """Return the only item of a list of one, since a model with one input takes the item; other inputs unchanged."""
    return x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x


def _are_batches(data: Any) -> bool:
    return isinstance(data, list) and bool(data) and all(isinstance(each, tuple) for each in data)


def _is_array(data: Any) -> bool:
    return not _are_batches(data) and not isinstance(data, torch.utils.data.Dataset) and can_convert_arrays((data,))


def _as_pairs(data: Any) -> Any:
    """Convert data so that batches and samples are (x, ()), (x, (y,)) or (x, (y, sample_weight))."""
    if _are_batches(data):
        return [_as_pairs(each) for each in data]
    if isinstance(data, (tuple, list)):
        if len(data) not in (1, 2, 3):
            raise InvalidArgument(
                f"data must be (x,), (x, y) or (x, y, sample_weight); got a tuple of {len(data)} items"
            )
        x, y, weight = (*data, None, None)[:3]
        return _alone(x), () if y is None else (y,) if weight is None else (y, weight)
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        return _Pairs(data)
    if isinstance(data, dict | torch.Tensor):
        return data, ()
    return _PairStream(data) if isinstance(data, Iterable) else data


class _Pairs(torch.utils.data.Dataset[Any]):
    """The samples of a dataset, converted by `_as_pairs`."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> Any:
        return _as_pairs(self._data[number])


class _PairStream:
    """The batches of a stream, converted by `_as_pairs`."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data

    def __iter__(self) -> Any:
        return (_as_pairs(batch) for batch in self._data)
