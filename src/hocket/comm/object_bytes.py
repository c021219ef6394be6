"""Python objects as bytes: pickled, sealed, and put one after another."""

from __future__ import annotations

import itertools
import pickle
from array import array
from collections.abc import Sequence, Sized
from typing import Any, NoReturn

from hocket.comm.object_seals import EVERYONE, Sealer
from hocket.errors import InvalidArgument, InvalidType, ResourceExhausted

SIZE_NBYTES = 8
_MOST_SHOWN = 80  # characters of an object, in messages


def int64s(count: int, values: Sequence[int] = ()) -> Any:
    return array("q", values) if values else array("q", bytes(SIZE_NBYTES * count))


def empty_bytes(sizes: Sequence[int]) -> bytearray:
    """Return memory for objects of these sizes, which other ranks sent."""
    nbytes = sum(map(abs, sizes))
    try:
        return bytearray(nbytes)
    except (MemoryError, OverflowError) as error:
        raise ResourceExhausted(f"cannot allocate {nbytes} bytes for objects of other ranks") from error


def pickle_sealed(obj: Any, sealer: Sealer, sender: int, receiver: int = EVERYONE) -> tuple[bytes, int]:
    """Return the object's bytes and their number. If it cannot be pickled: the reason, and its length, negative."""
    try:
        data = sealer.seal(pickle.dumps(obj, protocol=5), sender, receiver)
    except Exception as error:  # a user's class may raise anything
        why = f"{type(obj).__name__} cannot be pickled: {type(error).__name__}: {error}"
        reason = sealer.seal(why.encode(errors="replace"), sender, receiver, is_object=False)
        return reason, -len(reason)
    return data, len(data)


def check_count(objs: Sequence[Any] | None, size: int) -> None:
    if objs is None or not isinstance(objs, Sized) or len(objs) != size:
        given = f"{len(objs)} objects" if isinstance(objs, Sized) else repr(objs)[:_MOST_SHOWN]
        raise InvalidArgument(f"objs must hold one object for each of the {size} ranks, not {given}")


def _parts(data: bytearray, sizes: Sequence[int]) -> list[memoryview]:
    ends = list(itertools.accumulate(map(abs, sizes), initial=0))
    view = memoryview(data)
    return [view[begin:end] for begin, end in itertools.pairwise(ends)]


def unpickle_sealed(
    data: bytearray, sizes: Sequence[int], sealer: Sealer, sender: int | None = None, receiver: int = EVERYONE
) -> list[Any]:
    """Return objects whose bytes lie one after another.

    Args:
        data: bytes from all ranks, or from one.
        sizes: sizes of the objects; a negative size marks a reason instead of an object.
        sealer: of the operation; all seals are checked before anything is unpickled.
        sender: the rank that sent all objects; None: rank r sent object r.
        receiver: rank that the objects are sealed for.

    Raises:
        InvalidType: a rank sent a reason why its object cannot be pickled.
    """
    senders = range(len(sizes)) if sender is None else [sender] * len(sizes)
    opened = [
        sealer.open(part, each, receiver, is_object=size >= 0)
        for part, each, size in zip(_parts(data, sizes), senders, sizes, strict=True)
    ]
    _raise_reason(opened, sizes, senders)
    return [pickle.loads(each) for each in opened]


def raise_refused(
    data: bytearray, sizes: Sequence[int], sealer: Sealer, sender: int, receivers: Sequence[int]
) -> NoReturn:
    """Raise the reason why the root cannot send its objects."""
    parts = zip(_parts(data, sizes), receivers, sizes, strict=True)
    opened = [sealer.open(part, sender, receiver, is_object=size >= 0) for part, receiver, size in parts]
    _raise_reason(opened, sizes, [sender] * len(sizes))
    raise AssertionError("no size is negative")


def _raise_reason(opened: Sequence[memoryview], sizes: Sequence[int], senders: Sequence[int]) -> None:
    for part, size, sender in zip(opened, sizes, senders, strict=True):
        if size < 0:
            raise InvalidType(f"rank {sender}: its {bytes(part).decode(errors='replace')}")
