"""Messages that do not match what the receiver expects."""

from __future__ import annotations

import numpy as np
import pytest

import hocket as hk
from hocket import _native
from hocket.errors import CollectiveMismatch

from ..naming import assert_names
from .bad_calls import attempt, works

_SHORT = 16
_LONG = _native.CONSTANTS["ring_message_bytes"] + 1
_VERY_LONG = 9 * _native.CONSTANTS["bulk_bytes"]


def _run(comm: hk.Communicator, sent: np.ndarray, expected: np.ndarray) -> BaseException | None:
    """Rank 0 sends a message that rank 1 does not expect; then one that matches, with the same tag, arrives."""
    if comm.rank == 0:
        error = attempt(lambda: comm.send(sent, 1, 4))
        comm.send(np.arange(5.0), 1, 4)
    else:
        error = attempt(lambda: comm.recv(expected.copy(), 0, 4))
        x = np.zeros(5)
        comm.recv(x, 0, 4)
        assert x.tolist() == [0, 1, 2, 3, 4]
    works(comm)
    return error


def _bytes(count: int) -> np.ndarray:
    return np.zeros(count, np.uint8)


@pytest.mark.timeout(40)
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (_bytes(_SHORT), _bytes(_SHORT + 1)),
        (_bytes(_SHORT), _bytes(_VERY_LONG)),
        (_bytes(0), _bytes(1)),
        (_bytes(1), _bytes(0)),
        (np.zeros(4, "f4"), np.zeros(4, "i4")),
        (_bytes(_LONG), _bytes(_SHORT)),
        (_bytes(_LONG), _bytes(_LONG + 1)),
        (_bytes(_VERY_LONG), _bytes(_VERY_LONG - 1)),
        (np.zeros(90_000, "f4"), np.zeros(90_000, "i4")),
    ],
    ids=lambda array: f"{array.nbytes} {array.dtype}",
)
def test_message_that_does_not_fit(sent: np.ndarray, expected: np.ndarray) -> None:
    at_sender, at_receiver = hk.spawn(_run, 2, sent, expected, timeout=30)
    assert type(at_receiver) is CollectiveMismatch, at_receiver
    text = str(at_receiver)
    values = f"{expected.nbytes} bytes {expected.dtype}", f"{sent.nbytes} bytes {sent.dtype}"
    assert_names(text, "rank 1", "recv", "rank 0", "tag 4", *values, __file__)
    assert text.count(".py:") == 2 and "\n" not in text, text
    if sent.nbytes < _LONG:
        assert at_sender is None  # the send had completed before the receiver posted its receive
    else:
        assert type(at_sender) is CollectiveMismatch, at_sender
        text = str(at_sender)
        assert_names(text, "rank 0", "send", "rank 1", "tag 4", f"{sent.nbytes} bytes {sent.dtype}", __file__)


def _run_between_others(comm: hk.Communicator) -> list[str]:
    """One message that does not match, among many that do."""
    sizes = [_LONG, _SHORT, _VERY_LONG, _LONG, _SHORT]
    outcome = []
    if comm.rank == 0:
        pending = [comm.isend(_bytes(size) + np.uint8(i), 1) for i, size in enumerate(sizes)]
    else:
        arrays = [_bytes(size + (i == 2)) for i, size in enumerate(sizes)]
        pending = [comm.irecv(x, 0) for x in arrays]
    for work in pending:
        outcome.append(type(attempt(work.wait)).__name__)
    if comm.rank == 1:
        assert all((x == i).all() for i, x in enumerate(arrays) if i != 2)
    works(comm)
    return outcome


@pytest.mark.timeout(40)
def test_one_among_many() -> None:
    expected = ["NoneType", "NoneType", "CollectiveMismatch", "NoneType", "NoneType"]
    assert hk.spawn(_run_between_others, 2, timeout=30) == [expected, expected]
