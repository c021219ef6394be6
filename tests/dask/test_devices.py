"""Arrays in device memory go from one process of a host to another without the host, or as all others do. The device
is a fake one (tests/memory/devices.py): nothing here needs a GPU, and nothing here has run on one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

from distributed.comm import CommClosedError, connect  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402

import hocket as hk  # noqa: E402
from hocket.dask.devices import DeviceCookie  # noqa: E402
from hocket.memory.allocation import find_allocator  # noqa: E402

from ..load import scaled  # noqa: E402
from ..naming import assert_names, raises  # noqa: E402
from .connections import both_ends, listening, run  # noqa: E402
from .fake_device import DeviceNumbers, driver, state, to_device, use_device  # noqa: E402

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process have a device for one test."""
    cookie = DeviceCookie(hk._native.memory_cookie()[1])
    monkeypatch.setattr("hocket.dask.moving.device_cookie", lambda: cookie)
    monkeypatch.setattr("hocket.dask.devices.device_cookie", lambda: cookie)
    use_device()
    yield
    hk.memory.use_driver(None)


def doubling(**options: bool) -> AbstractContextManager[tuple[str, subprocess.Popen[str]]]:
    """Yield the address of a process that sends back twice what comes, and the process."""
    return listening([f"from tests.dask.fake_device import echo; echo(**{options!r})"])


def told(process: subprocess.Popen[str]) -> tuple[int, ...]:
    """End a process, and return its `state`."""
    assert process.stdin is not None and process.stdout is not None
    print(file=process.stdin, flush=True)
    return tuple(map(int, process.stdout.readline().split()))


SIZES = (0, 1, 1000, 300_000)


async def exchange(comm: Any, num_rounds: int = 3) -> None:
    """Send arrays of both kinds, and compare what comes back."""
    rng = np.random.default_rng(3)
    for _ in range(num_rounds):
        sent: list[Any] = []
        for size in SIZES:
            sent += [to_device(rng.standard_normal(size)), rng.standard_normal(size)]
        await comm.write({"x": [to_serialize(each) for each in sent]})
        found = (await comm.read())["x"]
        for before, after in zip(sent, found, strict=True):
            if isinstance(before, DeviceNumbers):
                np.testing.assert_array_equal(after.read(), 2 * before.read())
            else:
                np.testing.assert_array_equal(after, before)


def test_between_processes() -> None:
    """The bytes do not pass the host: each process has read one cookie, and copied each array within the device."""
    with doubling() as (address, process):

        async def program() -> None:
            comm = await connect(address)
            await exchange(comm)
            info = comm.extra_info
            assert info["path"] == "memory"
            assert info["nbytes_device_out"] == info["nbytes_device_in"] == 3 * 8 * sum(SIZES)
            assert info["nbytes_sent"] > 2 * info["nbytes_device_out"]
            # An empty array is not copied; what was one array's own memory is closed at once, so that it can be freed.
            assert state()[1:] == (3 * 3, 0, 3 * 3 + 1)
            await comm.close()

        run(program)
        assert told(process)[1:] == (9, 0, 10)


def test_memory_of_a_pool_stays_open_as_long_as_the_connection() -> None:
    use_device(pools=True)
    with doubling(pools=True) as (address, process):

        async def program() -> None:
            comm = await connect(address)
            await exchange(comm)
            assert state()[1:] == (9, 1, 0)
            await comm.close()
            assert state()[2:] == (0, 1)

        run(program)
        assert told(process)[1:] == (9, 0, 1)


@pytest.mark.parametrize(("option", "out", "into"), [("shares", 3, 0), ("opens", 0, 3)])
def test_a_device_whose_memory_others_cannot_open(option: str, out: int, into: int) -> None:
    """Then arrays go over the host, in the direction in which it must be so."""
    with doubling(**{option: False}) as (address, process):

        async def program() -> None:
            comm = await connect(address)
            await exchange(comm)
            info = comm.extra_info
            num_bytes = 8 * sum(SIZES)
            assert (info["nbytes_device_out"], info["nbytes_device_in"]) == (out * num_bytes, into * num_bytes)
            await comm.close()

        run(program)
        assert told(process)[1] == 3 * out


def test_memory_of_one_array_that_cannot_be_opened(caplog: pytest.LogCaptureFixture) -> None:
    """As that of a pool: found out when it is to be sent."""
    with doubling() as (address, _):

        async def program() -> None:
            comm = await connect(address)
            await exchange(comm, 1)
            driver()._shares = False
            await exchange(comm)
            info = comm.extra_info
            assert (info["nbytes_device_out"], info["nbytes_device_in"]) == (8 * sum(SIZES), 4 * 8 * sum(SIZES))
            await comm.close()

        run(program)
    assert_names(caplog.text, "DeviceBytes")
    assert len(caplog.records) == 1


def test_in_one_process() -> None:
    """Also there an array is copied: the two ends may change it."""

    async def program() -> None:
        async with both_ends() as (there, here):
            x = to_device(np.arange(5000.0))
            for writer, reader in ((there, here), (here, there)):
                await writer.write({"x": to_serialize(x)})
                found = (await reader.read())["x"]
                assert found.memory.address != x.memory.address
                np.testing.assert_array_equal(found.read(), np.arange(5000.0))
                assert writer.extra_info["nbytes_device_out"] == 40_000
            assert state()[2] == 0  # nothing is opened

    run(program)


def test_who_does_not_deserialize_takes_none() -> None:
    """As a scheduler: it would send them on to where they cannot be opened."""

    async def program() -> None:
        async with both_ends(deserialize=False) as (there, here):
            await there.write({"x": to_serialize(to_device(np.arange(9.0)))})
            await here.read()
            assert here.extra_info["nbytes_device_in"] == 0 < here.extra_info["nbytes_received"]

    run(program)


def test_a_sender_that_closes_before_the_copy() -> None:
    """What it lent may be anything then."""

    async def program() -> None:
        async with both_ends() as (there, here):
            await there.write({"x": to_serialize(to_device(np.arange(5000.0)))})
            await asyncio.sleep(0.05)
            assert there._stream.waiting_nbytes == 40_000  # until the receiver has copied it
            there.abort()
            with raises(CommClosedError):
                await here.read()

    run(program)


@pytest.mark.parametrize("size", [0, 5000])
def test_a_sender_that_closes_properly_waits_for_the_copy(size: int) -> None:
    async def program() -> None:
        async with both_ends() as (there, here):
            await there.write({"x": to_serialize(to_device(np.arange(float(size))))})
            closing = asyncio.ensure_future(there.close())
            np.testing.assert_array_equal((await here.read())["x"].read(), np.arange(float(size)))
            await closing
            with raises(CommClosedError):
                await here.read()

    run(program)


def test_an_array_that_is_being_copied_when_its_sender_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process nothing else keeps it."""
    began, goes_on = threading.Event(), threading.Event()

    async def program() -> None:
        async with both_ends() as (there, here):
            await there.write({"x": to_serialize(to_device(np.arange(5000.0)))})
            reading = asyncio.ensure_future(here.read())
            await asyncio.to_thread(began.wait, 20)
            num_before = len(driver().buffers)
            there.abort()
            assert len(driver().buffers) == num_before
            goes_on.set()
            with raises(CommClosedError):
                await reading

    own = driver().allocate_array

    def waits(nbytes: int) -> Any:
        array = own(nbytes)
        if nbytes == 40_000:
            copy = driver()._copy

            def slowly(*arguments: int) -> int:
                began.set()
                goes_on.wait(20)
                return copy(*arguments)

            monkeypatch.setattr(driver(), "_copy", slowly)
        return array

    monkeypatch.setattr(driver(), "allocate_array", waits)
    run(program)


def test_a_loan_whose_owner_has_ended() -> None:
    loan = hk._native.lend_frame(driver().allocate_array(100), False)
    assert loan is not None
    told = loan.told
    hk._native.copy_loan(told, os.getpid(), driver().allocate_array(100))
    with raises(hk.PeerFailure):  # of another array, at another address
        hk._native.copy_loan(
            (1 << 40).to_bytes(8, "little") + (1 << 41).to_bytes(8, "little") + told[16:88] + bytes(8) + told[96:],
            os.getpid(),
            driver().allocate_array(100),
        )
    del loan
    with raises(hk.PeerFailure):
        hk._native.copy_loan(told, os.getpid(), driver().allocate_array(100))


def test_connections_that_open_at_once_lend_the_same_bytes() -> None:
    cookie = DeviceCookie(b"0123456789abcdef")

    async def program() -> None:
        first, *others = await asyncio.gather(*(cookie.loan(True) for _ in range(5)))
        assert first is not None and all(each is first for each in others)

    run(program)


def test_memory_is_kept_until_it_was_copied() -> None:
    async def program() -> None:
        async with both_ends() as (there, here):
            num_before = len(driver().buffers)
            for turn in range(20):
                await there.write({"x": to_serialize(to_device(np.full(1000, float(turn))))})
            assert len(driver().buffers) == num_before + 20
            for turn in range(20):
                assert (await here.read())["x"].read()[-1] == turn
            await here.write("now the receipts go")
            await there.read()
            assert len(driver().buffers) <= num_before + 2

    run(program)


def test_a_device_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends, and those with this peer go over the host for a while."""

    async def program() -> None:
        async with both_ends() as (there, here):
            x = to_device(np.arange(100.0))
            await there.write({"x": to_serialize(x)})
            driver().fails = True
            with raises(CommClosedError, names=("copy_within", "700")):
                await here.read()
            driver().fails = False
        async with both_ends() as (there, here):
            await there.write({"x": to_serialize(x)})
            np.testing.assert_array_equal((await here.read())["x"].read(), np.arange(100.0))
            assert there.extra_info["nbytes_device_out"] == 0
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 61)
        monkeypatch.setattr("hocket.dask.devices.time", later)
        async with both_ends() as (there, here):
            await there.write({"x": to_serialize(x)})
            await here.read()
            assert there.extra_info["nbytes_device_out"] == 800

    run(program)


def test_a_cluster() -> None:
    """Workers send arrays to each other; the scheduler and the client have no device."""
    hk.memory.use_driver(None)
    with (
        distributed.LocalCluster(
            protocol="hocket://", n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(use_device)
        one, two = client.scheduler_info()["workers"]
        xs = [
            client.submit(lambda k: to_device(np.full(50_000, float(k))), k, workers=one, pure=False) for k in range(5)
        ]
        sums = [client.submit(lambda x: float(x.read().sum()), x, workers=two, pure=False) for x in xs]
        assert client.gather(sums) == [50_000.0 * k for k in range(5)]
        assert client.run(state, workers=[two])[two][1] == 5
        use_device()
        np.testing.assert_array_equal(xs[3].result(scaled(60)).read(), np.full(50_000, 3.0))


def test_which_library_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    hk.memory.use_driver(None)
    for name in ("rmm", "cupy", "numba.cuda"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert find_allocator() is None
    made = SimpleNamespace(
        device_array=lambda shape, dtype: ("numba", shape, dtype),
        empty=lambda shape, dtype: ("cupy", shape, dtype),
        DeviceBuffer=lambda size: ("rmm", size),
    )
    for name, wanted in (
        ("numba.cuda", ("numba", (7,), "u1")), ("cupy", ("cupy", 7, "u1")), ("rmm", ("rmm", 7)),
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, made)
        allocate = find_allocator()
        assert allocate is not None and allocate(7) == wanted


def test_loans_that_cannot_be() -> None:
    own = hk._native.lend_frame(driver().allocate_array(16), True)
    other = hk._native.lend_frame(driver().allocate_array(100), True)
    assert own is not None and other is not None
    with raises(hk.InvalidArgument, names=("112", "3")):
        hk._native.copy_loan(b"abc", 1, driver().allocate_array(16))
    with raises(hk.InvalidArgument, names=("15", "16")):
        hk._native.copy_loan(own.told, 1, driver().allocate_array(15))
    with raises(hk.InvalidArgument, names=("100",)):
        hk._native.read_loan(other.told, 1, own)
    beyond = own.told[:88] + (1).to_bytes(8, "little") + own.told[96:]
    with raises(hk.Aborted, names=("allocation",)):
        hk._native.copy_loan(beyond, 1, driver().allocate_array(16))
    assert state()[1] == 0
