"""Objects between ranks, also those that cannot be pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..load import scaled
from ..naming import assert_names, names_value, raises


def _round_trips(comm: hk.Communicator) -> bool:
    rank, size = comm.rank, comm.size
    mine: Any = [{"rank": rank}, np.arange(rank * 1000), None, "x" * (100_000 if rank == 1 else 3)][rank % 4]
    gathered = comm.all_gather_object(mine)
    assert len(gathered) == size and gathered[0] == {"rank": 0}
    np.testing.assert_array_equal(gathered[1], np.arange(1000))
    for root in range(size):
        gathered = comm.gather_object((rank, root), root)
        assert gathered == ([(each, root) for each in range(size)] if rank == root else None)
        assert comm.broadcast_object({"of": root} if rank == root else None, root) == {"of": root}
        objs = [[root, each] * each for each in range(size)] if rank == root else None
        assert comm.scatter_object(objs, root) == [root, rank] * rank
    swapped = comm.all_to_all_object([f"{rank} to {each}" * each for each in range(size)])
    assert swapped == [f"{each} to {rank}" * rank for each in range(size)]
    if rank == 0:
        comm.send_object(list(range(5)), 1, tag=2)
        comm.send_object("second", 1, tag=2)
    elif rank == 1:
        assert comm.recv_object(0, tag=2) == [0, 1, 2, 3, 4]
        assert comm.recv_object(0, tag=2) == "second"
    return True


def _over(comm: hk.Communicator, backend: str) -> bool:
    comm.finalize()
    comm = hk.init(backends=["shm", backend], timeout=scaled(30))
    objs = [{"to": each, "data": b"." * (10_000 * each)} for each in range(comm.size)]
    got = comm.all_to_all_object(objs, backend=backend)
    assert [each["to"] for each in got] == [comm.rank] * comm.size
    assert comm.all_gather_object(comm.rank, backend=backend) == list(range(comm.size))
    comm.finalize()
    return True


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_round_trips(num_ranks: int) -> None:
    assert all(hk.spawn(_round_trips, num_ranks, timeout=50))


def test_other_backend() -> None:
    assert all(hk.spawn(_over, 2, "mpi", timeout=50))


def _cannot(comm: hk.Communicator) -> list[str]:
    def bad() -> None:
        """Local functions cannot be pickled."""

    mine = bad if comm.rank == 1 else "good"
    calls: list[Any] = [
        lambda: comm.all_gather_object(mine),
        lambda: comm.gather_object(mine, 0),
        lambda: comm.broadcast_object(mine, 1),
        lambda: comm.scatter_object([1, bad, 3] if comm.rank == 1 else None, 1),
        lambda: comm.all_to_all_object([1, bad, 3] if comm.rank == 1 else [1, 2, 3]),
    ]
    texts = []
    for call in calls:
        with pytest.raises(hk.InvalidType) as caught:
            call()
        texts.append(str(caught.value))
        assert comm.all_gather_object(comm.rank) == [0, 1, 2]
    with raises(hk.InvalidType, names=("function", "_cannot.<locals>.bad")):
        comm.send_object(bad, 0)
    with raises(hk.InvalidArgument, names=("objs", "3", "2")):
        comm.all_to_all_object([1, 2])
    comm.barrier()
    return texts


def test_not_to_be_pickled() -> None:
    for texts in hk.spawn(_cannot, 3, timeout=50):
        for text in texts:
            assert_names(text, "rank 1", "function", "_cannot.<locals>.bad")


def _meets_an_array(comm: hk.Communicator, operation: str) -> None:
    """Rank 0 has an object, rank 1 an array with as many bytes as the header that holds the object's size."""
    x, both = np.zeros(1, np.int64), np.zeros(2, np.int64)
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "broadcast": (lambda: comm.broadcast_object("it", 0), lambda: comm.broadcast(x, 0)),
        "all_gather": (lambda: comm.all_gather_object("it"), lambda: comm.all_gather(both, x)),
        "gather": (lambda: comm.gather_object("it", 0), lambda: comm.all_gather(both, x)),
        "scatter": (lambda: comm.scatter_object(["it", "this"], 0), lambda: comm.broadcast(both, 0)),
        "all_to_all": (lambda: comm.all_to_all_object(["it", "this"]), lambda: comm.all_to_all(both, both.copy())),
    }
    with raises(hk.CollectiveMismatch, names=("rank 0", "object", "rank 1", "int64")):
        calls[operation][comm.rank]()
    assert comm.all_gather_object(comm.rank) == [0, 1]


@pytest.mark.parametrize("operation", ["broadcast", "all_gather", "gather", "scatter", "all_to_all"])
def test_an_object_meets_an_array(operation: str) -> None:
    hk.spawn(_meets_an_array, 2, operation, timeout=50)


def _message_meets_an_array(comm: hk.Communicator, of_object: int) -> None:
    x = np.zeros(1, np.int64)
    if comm.rank == 0:
        comm.send_object("it", 1) if of_object == 0 else comm.send(x, 1)
    else:
        with raises(hk.CollectiveMismatch, names=("rank 1", "object", "rank 0", "int64")):
            comm.recv_object(0) if of_object == 1 else comm.recv(x, 0)


@pytest.mark.parametrize("of_object", [0, 1])
def test_the_message_of_an_object_meets_an_array(of_object: int) -> None:
    hk.spawn(_message_meets_an_array, 2, of_object, timeout=50)


def _root_cannot(comm: hk.Communicator) -> list[str]:
    bad = (each for each in "generators cannot be pickled")
    texts = []
    for objs in (["good", bad], [bad, "good"]):
        with pytest.raises(hk.InvalidType) as caught:
            comm.scatter_object(objs if comm.rank == 0 else None, 0)
        texts.append(str(caught.value))
    return texts


def test_the_root_is_named_and_not_who_would_get_it() -> None:
    assert all(names_value(text, "rank 0") for texts in hk.spawn(_root_cannot, 2, timeout=50) for text in texts)
