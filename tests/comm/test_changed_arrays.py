"""Arrays that get other memory or another size while an operation is prepared or in flight."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..naming import raises

pytestmark = pytest.mark.timeout(60)

COUNTS = (4, 1000, 300_000)  # in place, in pieces, in separate shared memory


def _other_memory(comm: hk.Communicator) -> bool:
    """The tensor has other memory of the same size now: the operation uses it and does not touch the old memory."""
    torch: Any = importlib.import_module("torch")
    for count in COUNTS:
        for strided in (False, True):
            tensor = torch.ones(2 * count)[::2] if strided else torch.ones(count)
            old = tensor.view(-1) if not strided else tensor[:]
            reduce = comm.prepare("all_reduce", tensor)
            reduce()
            for value in (5.0, 7.0):
                tensor.data = torch.full((count,), value)  # contiguous from now on
                gc.collect()
                junk = torch.zeros(count)  # may get the freed memory
                reduce()
                assert (tensor == value * comm.size).all()
                assert (old == comm.size).all()
                assert not junk.any()
                reduce.start()
                reduce.wait(20)
                assert (tensor == value * comm.size**2).all()
    return True


def test_a_prepared_operation_follows_other_memory() -> None:
    assert all(hk.spawn(_other_memory, 2, timeout=50))


def _every_form(comm: hk.Communicator) -> bool:
    torch: Any = importlib.import_module("torch")
    size, rank = comm.size, comm.rank

    def exchange(tensor: Any, value: float) -> None:
        tensor.data = torch.full_like(tensor, value)

    x, out = torch.zeros(6), torch.zeros(6 * size)
    gather = comm.prepare("all_gather", out, x)
    exchange(x, rank + 1)
    gather()
    assert out.view(size, 6)[:, 0].tolist() == [1 + each for each in range(size)]
    exchange(out, -1)
    gather()
    assert out.view(size, 6)[:, 5].tolist() == [1 + each for each in range(size)]

    message = torch.zeros(4)
    if rank == 0:
        send = comm.prepare("send", message, 1)
        exchange(message, 9)
        send()
    elif rank == 1:
        receive = comm.prepare("recv", message, 0)
        exchange(message, 0)
        receive()
        assert (message == 9).all()

    # out becomes a part of x: prepare() would refuse this, and so does the next call
    x, out = torch.zeros(2 * size), torch.zeros(2)
    scatter = comm.prepare("reduce_scatter", out, x)
    out.data = x[2 * ((rank + 1) % size) :][:2]
    with raises(hk.InvalidArgument, names=("out", "x")):
        scatter()
    return True


def test_every_form_of_operation_follows() -> None:
    assert all(hk.spawn(_every_form, 2, timeout=50))


def _another_kind(comm: hk.Communicator) -> bool:
    """Size, type or layout have changed, so the operation would be a different one."""
    torch: Any = importlib.import_module("torch")

    def check(change: Callable[[Any], object], error: type[Exception], *names: str) -> None:
        tensor = torch.ones(8)
        reduce = comm.prepare("all_reduce", tensor)
        reduce()
        change(tensor)
        for _ in range(2):  # it stays so
            with raises(error, names=names):
                reduce()
            with raises(error, names=names):
                reduce.start()

    check(lambda x: setattr(x, "data", torch.ones(9)), hk.InvalidState, "32", "36")
    check(lambda x: setattr(x, "data", torch.ones(8, dtype=torch.float64)), hk.InvalidState, "float32", "float64")
    check(lambda x: setattr(x, "data", x.data.view(torch.int32)), hk.InvalidState, "float32", "int32")
    check(lambda x: x.resize_(3), hk.InvalidState, "32", "12")
    check(lambda x: x.untyped_storage().resize_(0), hk.InvalidType, "x", "8")
    # the same memory in another order
    tensor = torch.arange(6.0).reshape(2, 3) * 1.0
    reduce = comm.prepare("all_reduce", tensor)
    tensor.t_()
    reduce()
    assert tensor.t().flatten().tolist() == [comm.size * each for each in range(6)]
    return True


def test_an_array_of_another_kind_is_refused() -> None:
    assert all(hk.spawn(_another_kind, 2, timeout=50))


class _Derived(np.ndarray[Any, Any]):
    pass


_NUMPY: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "view": lambda x: x[:],
    "cut": lambda x: x[10:-10],
    "strided": lambda x: x[::2],
    "memoryview": memoryview,
    "memoryview of a view": lambda x: memoryview(x[10:]),
    "derived": lambda x: x.view(_Derived),
}


def _numpy(comm: hk.Communicator) -> bool:
    """NumPy refuses to resize while an operation has the array."""
    for make in _NUMPY.values():
        x = np.ones(1000)
        reduce = comm.prepare("all_reduce", given := make(x))
        reduce()
        with pytest.raises(ValueError, match="resize"):
            x.resize(1 << 20, refcheck=False)
        reduce()
        assert np.asarray(given)[3] == comm.size**2
        del reduce
        gc.collect()
        x.resize(2000, refcheck=False)

        y = np.ones(100_000)
        work = comm.all_reduce(make(y), async_op=True)
        with pytest.raises(ValueError, match="resize"):
            y.resize(1, refcheck=False)
        work.wait()
        assert np.asarray(make(y))[3] == comm.size
        y.resize(1, refcheck=False)  # allowed at once, because nothing holds it any longer
    return True


def test_numpy_arrays_keep_their_memory() -> None:
    assert all(hk.spawn(_numpy, 2, timeout=50))


def _in_flight(comm: hk.Communicator) -> bool:
    """A tensor gets other memory while its old memory is in use: the old one is kept until the operation ends."""
    torch: Any = importlib.import_module("torch")
    for count in COUNTS:
        tensor = torch.ones(count)
        storage = tensor.untyped_storage()
        view, weak = torch.empty(0).set_(storage), storage._weak_ref()
        work = comm.all_reduce(tensor, async_op=True)
        tensor.data = torch.full((count,), 5.0)
        del storage
        gc.collect()
        work.wait()
        assert (view == comm.size).all()
        assert (tensor == 5).all()
        assert not torch.UntypedStorage._expired(weak)
        del view
        assert torch.UntypedStorage._expired(weak)
        torch.UntypedStorage._free_weak_ref(weak)
    return True


def test_memory_in_flight_is_kept() -> None:
    assert all(hk.spawn(_in_flight, 2, timeout=50))
