"""Ranks of a host that use each other's arrays in device memory in place."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import hocket as hk
import hocket.memory

from ..naming import raises
from . import devices, on_device
from .devices import DeviceArray, DeviceView, SharingDriver
from .on_device import check_collectives

pytestmark = pytest.mark.timeout(120)
for each in (devices, on_device):  # ranks cannot import modules of the tests
    cloudpickle.register_pickle_by_value(each)


class Place:
    """Allocates arrays one after another, each on its own pages."""

    def __init__(self, driver: SharingDriver) -> None:
        self.driver = driver
        self._page = 0

    def __call__(self, x: np.ndarray[Any, Any]) -> DeviceArray:
        array = DeviceArray(self.driver, x, self._page)
        self._page += x.nbytes // 4096 + 1
        return array

    put = __call__

    def read(self, array: DeviceArray) -> np.ndarray[Any, Any]:
        return array.read()

    def view(self, array: DeviceArray, begin: int, count: int) -> DeviceView:
        return array.view(begin, count)


def _start(comm: hk.Communicator, driver: SharingDriver) -> Place:
    hocket.memory.use_driver(driver)
    put = Place(driver)
    # The first operation finds out that memory can be opened.
    x = put(np.full(3000, 1.0))
    comm.all_reduce(x)
    np.testing.assert_array_equal(x.read(), np.full(3000, float(comm.size)))
    return put


def _every_kind(comm: hk.Communicator, count: int, dtype: str) -> dict[str, tuple[bool, int, int, int]]:
    """Return for each operation whether it ran in place, and the number of copies of each kind on this rank."""
    driver = SharingDriver()
    place = _start(comm, driver)
    seen: dict[str, tuple[bool, int, int, int]] = {}

    def watch(name: str, call: Callable[[], object]) -> None:
        before = driver.num_to_host, driver.num_to_device, driver.num_within
        call()
        after = driver.num_to_host, driver.num_to_device, driver.num_within
        host, device, within = (b - a for a, b in zip(before, after, strict=True))
        seen[name] = comm.records()[-1].in_place, host, device, within

    check_collectives(comm, place, count, dtype, watch)
    assert driver.open_now and not driver.num_refused
    comm.finalize()
    return seen


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(("count", "dtype"), [(2000, "float32"), (300_001, "int64")])
def test_every_kind_of_operation(size: int, count: int, dtype: str) -> None:
    moved = {"broadcast", "all_gather", "all_to_all", "gather", "scatter", "all_gatherv", "own block"}
    for rank, seen in enumerate(hk.spawn(_every_kind, size, count, dtype, timeout=110)):
        for name, (in_place, to_host, to_device, within) in seen.items():
            assert in_place == (name != "all_to_allv"), name  # only two ranks know the place of a block there
            if name in moved:
                assert (to_host, to_device) == (0, 0), (rank, name)
            elif name != "all_to_allv":
                assert within == 0, (rank, name)
        assert seen["all_gather"][3] == size and seen["own block"][3] == size - 1
        assert seen["gather"][3] == seen["scatter"][3] == 1  # each rank writes its block to the root, or reads it there


def _by_the_host(comm: hk.Communicator, how: str) -> list[bool]:
    driver = SharingDriver(shares=how != "not shared" or comm.rank != 1, opens=how != "not opened" or comm.rank != 1)
    put = _start(comm, driver)
    in_place = []
    for turn in range(3):
        x = np.arange(5000.0) + comm.rank + turn
        is_on_host = (how == "one on the host" and comm.rank == 0) or (how == "two of each" and turn == comm.rank)
        given = x if is_on_host else put(x)
        comm.all_reduce(given)
        expected = 3 * (np.arange(5000.0) + turn) + 3
        np.testing.assert_array_equal(x if is_on_host else given.read(), expected)
        in_place.append(comm.records()[-1].in_place)
    comm.finalize()
    return in_place


@pytest.mark.parametrize("how", ["not shared", "not opened", "one on the host", "two of each"])
def test_by_the_host_where_not_all_see_all(how: str) -> None:
    assert hk.spawn(_by_the_host, 3, how, timeout=100) == [[False] * 3] * 3


def _at_one_place(comm: hk.Communicator) -> int:
    driver = SharingDriver()
    _start(comm, driver)
    for turn in range(20):
        x = DeviceArray(driver, np.full(2000 + 500 * (turn % 3), turn + comm.rank), page=100)
        comm.all_reduce(x)
        np.testing.assert_array_equal(x.read(), np.full(2000 + 500 * (turn % 3), 2 * turn + 1))
        assert comm.records()[-1].in_place
        driver.free(x.address)
        assert len(driver.open_now) == 2  # the first one and this one; the driver refuses to open one twice
    return driver.num_closed


def test_an_allocation_at_the_place_of_another_one() -> None:
    assert hk.spawn(_at_one_place, 2, timeout=100) == [19, 19]


def _many_allocations(comm: hk.Communicator) -> int:
    driver = SharingDriver()
    put = _start(comm, driver)
    for turn in range(100):
        comm.all_gather(put(np.zeros((2, 600))), put(np.full(600, float(turn))))
    return len(driver.open_now)


def test_few_allocations_stay_open() -> None:
    assert hk.spawn(_many_allocations, 2, timeout=100) == [64, 64]


def _in_flight(comm: hk.Communicator) -> None:
    put = _start(comm, SharingDriver())
    x = put(np.full(4000, 1.0))
    works = [comm.all_reduce(x, async_op=True) for _ in range(5)]
    for work in reversed(works):
        work.wait()
    np.testing.assert_array_equal(x.read(), np.full(4000, 32.0))
    prepared = comm.prepare("all_reduce", x, "avg")
    for value in (3.0, 5.0):
        x.driver.write(x.address, np.full(4000, value + comm.rank))
        prepared()
        np.testing.assert_array_equal(x.read(), np.full(4000, value + 0.5))
    assert all(record.in_place for record in comm.records()[-2:])
    small = put(np.full(4, 1.0))
    comm.all_reduce(small)
    np.testing.assert_array_equal(small.read(), np.full(4, 2.0))
    assert not comm.records()[-1].in_place


def test_in_flight_in_order_and_prepared() -> None:
    hk.spawn(_in_flight, 2, timeout=100)


def test_one_rank_alone() -> None:
    comm = hk.init(backends="shm")
    driver = SharingDriver()
    hocket.memory.use_driver(driver)
    put = Place(driver)
    out, x = put(np.zeros(3000)), put(np.arange(3000.0))
    comm.all_gather(out, x)
    np.testing.assert_array_equal(out.read(), np.arange(3000.0))
    assert driver.num_within == 1
    hocket.memory.use_driver(None)
    comm.finalize()


def _dying(comm: hk.Communicator, folder: Path) -> None:
    put = _start(comm, SharingDriver())
    x = put(np.full(100_000, 1.0))
    comm.all_reduce(x)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(hk.PeerFailure) as raised:
        comm.all_reduce(x)
    assert raised.value.ranks == (1,)
    rest = comm.shrink()
    y = put(np.full(5000, 2.0))
    for _ in range(2):
        rest.all_reduce(y)
    np.testing.assert_array_equal(y.read(), np.full(5000, 8.0))
    assert rest.records()[-1].in_place
    (folder / f"went-on-{comm.rank}").touch()


def test_a_rank_that_dies(tmp_path: Path) -> None:
    with raises(hk.RemoteError, names=("rank 1", "SIGKILL")):
        hk.spawn(_dying, 3, tmp_path, timeout=100)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["went-on-0", "went-on-2"]


def _given_up(comm: hk.Communicator) -> None:
    other = comm.dup()
    put = _start(comm, SharingDriver())
    x = put(np.full(5000, 1.0))
    kept = weakref.ref(x)
    if comm.rank == 0:
        with raises(hk.CommTimeout, names=("all_reduce(sum)", "rank 1"), ranks=(1,)):
            comm.all_reduce(x, timeout=0.3)
    del x
    gc.collect()
    other.barrier()
    # Other ranks may have started to write into it.
    assert (kept() is not None) == (comm.rank == 0)


def test_arrays_of_what_was_given_up_are_kept() -> None:
    hk.spawn(_given_up, 2, timeout=100)


def _failing(comm: hk.Communicator) -> None:
    driver = SharingDriver()
    put = _start(comm, driver)
    x = put(np.full(100_000, 1.0))
    kept = weakref.ref(x)
    driver.fails = comm.rank == 1
    with raises(hk.Aborted, names=("'fake'", "700")):
        comm.all_reduce(x)
    del x
    gc.collect()
    assert kept() is not None  # the other rank may still write into it


def test_a_device_that_fails_in_the_middle() -> None:
    hk.spawn(_failing, 2, timeout=100)


def test_a_driver_that_shares_by_halves() -> None:
    driver = devices.FakeDriver()
    driver.share = 1  # type: ignore[attr-defined]
    with raises(hk.InvalidType, names=("copy_within", "open", "close", "hocket.memory.MemoryDriver")):
        hocket.memory.use_driver(driver)


def _several_communicators(comm: hk.Communicator) -> None:
    other = comm.dup()
    driver = SharingDriver()
    put = _start(comm, driver)
    x = put(np.full(5000, 1.0))
    comm.all_reduce(x)
    other.all_reduce(put(np.full(5000, 1.0)))
    works = [each.all_reduce(x, async_op=True) for each in (comm, other)]
    works[0].wait()
    works[1].wait()
    y = put(np.full(5000, 1.0))
    other.all_reduce(y)
    np.testing.assert_array_equal(y.read(), np.full(5000, 2.0))
    assert other.records()[-1].in_place and not driver.num_refused
    assert len(driver.open_now) == 4


def test_an_allocation_is_open_once_for_all_communicators() -> None:
    hk.spawn(_several_communicators, 2, timeout=100)


def _in_the_middle_of_many(comm: hk.Communicator) -> None:
    """More allocations are in use at the same time than stay open."""
    driver = SharingDriver()
    put = _start(comm, driver)
    others = [comm.dup() for _ in range(35)]
    for turn in range(2):
        pairs = [(put(np.zeros((2, 3000))), put(np.full(3000, float(comm.rank + turn)))) for _ in others]
        works = [each.all_gather(*pair, async_op=True) for each, pair in zip(others, pairs, strict=True)]
        for work, (out, _) in zip(works, pairs, strict=True):
            work.wait()
            np.testing.assert_array_equal(out.read(), np.repeat([[turn], [turn + 1.0]], 3000, 1))
    assert not driver.num_refused


def test_many_at_once() -> None:
    hk.spawn(_in_the_middle_of_many, 2, timeout=100)


def _ragged(comm: hk.Communicator) -> None:
    driver = SharingDriver()
    put = _start(comm, driver)
    counts = [0, 4000, 2000]
    x = put(np.full(counts[comm.rank], float(comm.rank)))
    out = put(np.zeros(6000))
    for _ in range(2):
        comm.all_gatherv(out, x, counts)
        np.testing.assert_array_equal(out.read(), np.repeat([1.0, 2.0], [4000, 2000]))
    comm.all_reduce(put(np.zeros(0)))


def test_arrays_without_bytes() -> None:
    hk.spawn(_ragged, 3, timeout=100)


def _as_the_policy_says(comm: hk.Communicator) -> None:
    rank = comm.rank
    comm.finalize()
    comm = hk.init(backends=["shm", "gloo"], timeout=60)
    put = _start(comm, SharingDriver())
    comm.policy = hk.Policy.fixed({"*": "gloo"})
    for turn in range(3):
        x = np.full(5000, 1.0)
        given = x if turn == rank else put(x)
        comm.all_reduce(given)
        np.testing.assert_array_equal(x if turn == rank else given.read(), np.full(5000, 2.0))
        assert comm.records()[-1].backend == "gloo"


def test_a_policy_is_that_of_arrays_on_the_host() -> None:
    hk.spawn(_as_the_policy_says, 2, timeout=100)
