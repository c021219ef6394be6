"""The driver is asked once per buffer, and its answer is not used for another buffer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import hocket as hk
import hocket.memory

from ..naming import raises
from .devices import DeviceArray, FakeDriver

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def comm() -> Iterator[hk.Communicator]:
    with hk.init(backends="shm") as world:
        yield world


@pytest.fixture(autouse=True)
def no_driver() -> Iterator[None]:
    yield
    hocket.memory.use_driver(None)


@pytest.mark.parametrize("tells_frees", [True, False])
def test_one_query_a_buffer_in_ten_thousand_calls(comm: hk.Communicator, tells_frees: bool) -> None:
    driver = FakeDriver(tells_frees=tells_frees)
    hocket.memory.use_driver(driver)
    arrays = [DeviceArray(driver, np.arange(64, dtype=np.float32), page) for page in range(10)]
    for call in range(10_000):
        comm.all_reduce(arrays[call % 10].view(call % 60, 4))
    # Views come and go; if the driver does not report frees, an array that stays confirms the buffer.
    asked = len(driver.asked)
    if tells_frees:
        assert asked == 10
    for array in arrays:
        comm.all_reduce(array)
    held = len(driver.asked)
    for call in range(10_000):
        comm.all_reduce(arrays[call % 10].view(call % 60, 4))
        comm.all_reduce(arrays[call % 10])
    assert len(driver.asked) == held
    seen = hocket.memory.counters()
    assert seen.queries == 10 and seen.buffers == 10 and seen.forgotten == 0
    assert seen.queries + seen.confirmations == held and seen.hits + held == 30_010


@pytest.mark.parametrize("tells_frees", [True, False])
def test_nothing_stale_after_free_and_malloc_at_the_same_address(comm: hk.Communicator, tells_frees: bool) -> None:
    driver = FakeDriver(tells_frees=tells_frees)
    hocket.memory.use_driver(driver)
    for turn in range(200):
        count = 16 + 8 * (turn % 5)
        array = DeviceArray(driver, np.full(count, turn, np.float64))
        for _ in range(5):
            comm.all_reduce(array)
        # The answer for the earlier buffer would have another end, and so refuse the longer one.
        assert driver.buffers[array.address][0] == array.address + 8 * count
        address = array.address
        del array
        driver.free(address)
        if tells_frees:
            hocket.memory.forget(address)
    seen = hocket.memory.counters()
    assert seen.queries == 200 and seen.hits == 800
    assert seen.forgotten == (200 if tells_frees else 199)
    assert seen.confirmations == (0 if tells_frees else 199)


def test_a_buffer_that_swallows_others_replaces_them(comm: hk.Communicator) -> None:
    driver = FakeDriver(tells_frees=True)
    hocket.memory.use_driver(driver)
    for page in (0, 1, 3):
        comm.all_reduce(DeviceArray(driver, np.ones(4), page))
    assert hocket.memory.counters().buffers == 3
    driver.buffers.clear()  # without a call of forget()
    hocket.memory.forget(DeviceArray(driver, np.ones(4), 0).address)
    comm.all_reduce(DeviceArray(driver, np.ones(1024), 0))  # two pages
    seen = hocket.memory.counters()
    assert seen.buffers == 2 and seen.forgotten == 2


def test_a_driver_that_is_none() -> None:
    with raises(hk.InvalidType, names=("tells_frees", "copy_to_host", "hocket.memory.MemoryDriver")):
        hocket.memory.use_driver(type("Driver", (), {"name": "incomplete"})())  # type: ignore[arg-type]


def test_without_a_driver(comm: hk.Communicator) -> None:
    driver = FakeDriver()
    array = DeviceArray(driver, np.ones(4))
    with raises(hk.BackendUnavailable, names=("libcuda.so.1", "hocket.memory.use_driver()")):
        comm.all_reduce(array)
