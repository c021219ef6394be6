"""Seals on objects: bytes on a library's connection that no rank sent are not unpickled."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.comm import objects
from hocket.comm.object_seals import ObjectSeals, Sealer
from hocket.errors import AuthenticationError, InvalidType, ResourceExhausted

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.timeout(120)
KEY = b"k" * 32


def sealer(**changed: Any) -> Sealer:
    return Sealer(**({"key": KEY, "communicator": 5, "number": 2, "tag": 3} | changed))


@pytest.mark.parametrize(
    ("other", "sender", "receiver"),
    [
        (sealer(key=b"K" * 32), 1, 2),
        (sealer(communicator=6), 1, 2),
        (sealer(number=3), 1, 2),
        (sealer(tag=4), 1, 2),
        (sealer(backend="gloo"), 1, 2),
        (sealer(), 0, 2),
        (sealer(), 1, 0),
    ],
    ids=["job", "communicator", "number", "tag", "library", "sender", "receiver"],
)
def test_a_seal_is_for_one_object(other: Sealer, sender: int, receiver: int) -> None:
    sealed = sealer().seal(b"data", 1, 2)
    assert bytes(sealer().open(memoryview(sealed), 1, 2)) == b"data"
    with raises(AuthenticationError, names=(f"rank {sender}", "36")):
        other.open(memoryview(sealed), sender, receiver)


@pytest.mark.parametrize("data", [b"", b"a", bytes(31), bytes(32), bytes(100)])
def test_what_has_no_seal(data: bytes) -> None:
    with pytest.raises(AuthenticationError):
        sealer().open(memoryview(data), 1, 2)


def test_an_object_and_why_there_is_none_have_different_seals() -> None:
    for is_object in (True, False):
        sealed = memoryview(sealer().seal(b"data", 1, 2, is_object=is_object))
        assert bytes(sealer().open(sealed, 1, 2, is_object=is_object)) == b"data"
        with pytest.raises(AuthenticationError):
            sealer().open(sealed, 1, 2, is_object=not is_object)


def test_numbers_are_those_of_the_library_the_pair_and_the_tag() -> None:
    sender, receiver = ObjectSeals(KEY, 5), ObjectSeals(KEY, 5)
    for backend, tag, text in (("gloo", 0, b"a"), ("mpi", 0, b"b"), ("gloo", 7, b"c"), ("gloo", 0, b"d")):
        sealed = sender.for_sending(True, backend, 1, tag).seal(text, 0, 1)
        assert bytes(receiver.for_receiving(True, backend, 0, tag).open(memoryview(sealed), 0, 1)) == text
    with pytest.raises(AuthenticationError):  # the last one again
        receiver.for_receiving(True, "gloo", 0, 0).open(memoryview(sealed), 0, 1)


class _Harm:
    """An object that an attacker would want a rank to unpickle."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return exec, (f"import os; open({str(self._path)!r} + os.environ['RANK'], 'w')",)


_METHODS = {
    "all_gather": lambda comm, obj: comm.all_gather_object(obj, backend="mpi"),
    "gather": lambda comm, obj: comm.gather_object(obj, 0, backend="mpi"),
    "broadcast": lambda comm, obj: comm.broadcast_object(obj, 1, backend="mpi"),
    "scatter": lambda comm, obj: comm.scatter_object([obj] * comm.size, 1, backend="mpi"),
    "all_to_all": lambda comm, obj: comm.all_to_all_object([obj] * comm.size, backend="mpi"),
    "message": lambda comm, obj: (
        comm.send_object(obj, 0, backend="mpi") if comm.rank else comm.recv_object(1, backend="mpi")
    ),
}


def _send_forged(comm: hk.Communicator, method: str, harm: str) -> str:
    """Rank 1 does not have the key: it plays an attacker who writes to its connection."""
    comm.finalize()
    comm = hk.init(backends=["shm", "mpi"], timeout=scaled(30))
    assert _METHODS[method](comm, "harmless") is not None or comm.rank == 1
    if comm.rank == 1:
        comm._object_transport.seals._key = b"K" * 32
    obj: Any = _Harm(Path(harm)) if comm.rank == 1 else "mine"
    try:
        _METHODS[method](comm, obj)
    except AuthenticationError as error:
        return f"refused: {error}"
    finally:
        comm.barrier(backend="shm")
        comm.finalize()
    return "taken"


@pytest.mark.parametrize("method", _METHODS)
def test_what_no_rank_sent_is_not_unpickled(method: str, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    results = hk.spawn(_send_forged, 2, method, str(harm), timeout=60)
    assert results[0].startswith("refused: ")
    assert "rank 1" in results[0]
    assert not Path(f"{harm}0").exists()


def _share(comm: hk.Communicator) -> list[Any]:
    """All forms, with and without a named library; the sizes show whether the bytes are sealed."""
    sizes: list[int] = []
    before = objects.empty_bytes

    def recorded(of_objects: Any) -> bytearray:
        sizes.append(sum(map(abs, of_objects)))
        return before(of_objects)

    comm.finalize()
    comm = hk.init(backends=["shm", "mpi"], timeout=scaled(30))
    objects.empty_bytes = recorded  # type: ignore[assignment]
    try:
        for backend in (None, "shm", "mpi"):
            assert comm.all_gather_object(comm.rank, backend=backend) == [0, 1]
            with pytest.raises(InvalidType):
                comm.all_gather_object(lambda: 3, backend=backend)
    finally:
        objects.empty_bytes = before
    comm.finalize()
    return sizes


def test_shared_memory_needs_no_seals() -> None:
    plain = 2 * len(pickle.dumps(0, protocol=5))
    for sizes in hk.spawn(_share, 2, timeout=60):
        assert sizes[0] == sizes[2] == plain and sizes[4] == plain + 64


def test_a_size_that_nobody_can_have() -> None:
    with raises(ResourceExhausted, names=(str(1 << 62),)):
        objects.empty_bytes(np.array([1 << 62]))
