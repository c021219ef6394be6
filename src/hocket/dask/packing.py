"""Objects for every rank in one array of bytes: what their buffers hold is copied once, and read in place."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT = 64


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def pack(objects: Sequence[Any]) -> tuple[NDArray[np.uint8], list[int]]:
    """Return the bytes of all objects, one after another, and the number of bytes of each.

    An object is a pickle, and its buffers (PEP 574) one after another, each aligned.

    Args:
        objects: anything that can be pickled.
    """
    frames = [_frames_of(each) for each in objects]
    counts = [sum(_aligned(frame.nbytes) for frame in each) for each in frames]
    packed = np.empty(sum(counts), np.uint8)
    at = 0
    for frame in (frame for each in frames for frame in each):
        packed[at : at + frame.nbytes] = frame
        at += _aligned(frame.nbytes)
    return packed, counts


def unpack(packed: NDArray[np.uint8], counts: Sequence[int]) -> list[Any]:
    """Return the objects; arrays in them are views of `packed`.

    Args:
        packed: from processes of this job: pickles can run code.
        counts: number of bytes of each object.
    """
    ends = np.cumsum(counts)
    return [_object_in(packed[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def _frames_of(value: Any) -> list[NDArray[np.uint8]]:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    frames = [np.frombuffer(pickled, np.uint8), *(np.frombuffer(each.raw(), np.uint8) for each in buffers)]
    head = np.array([len(frames), *(each.nbytes for each in frames)], "<u8").view(np.uint8)
    return [head, *frames]


def _object_in(part: NDArray[np.uint8]) -> Any:
    num_frames = int(part[:8].view("<u8")[0])
    sizes = part[8 : 8 * (num_frames + 1)].view("<u8").tolist()
    at, frames = _aligned(8 * (num_frames + 1)), []
    for each in sizes:
        frames.append(part[at : at + each])
        at += _aligned(each)
    return pickle.loads(frames[0].data, buffers=frames[1:])
