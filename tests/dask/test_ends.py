"""How connections end: closed, aborted, cancelled, killed; nothing hangs, is left behind, or is made up."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")

from distributed.comm import connect, listen  # noqa: E402
from distributed.comm.core import CommClosedError  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402

from ..load import scaled  # noqa: E402
from .connections import both_ends, descriptors, echoing, run  # noqa: E402


def test_close_sends_what_was_written() -> None:
    async def program() -> None:
        async with both_ends() as (there, here):
            for size in (1, 100_000, 3_000_000):
                await there.write({"x": to_serialize(np.ones(size))})
            reading = asyncio.ensure_future(_sizes(here))
            await there.close()
            assert await reading == [1, 100_000, 3_000_000]
            assert there.closed() and here.closed()
            with pytest.raises(CommClosedError):
                await there.write({})
            assert "closed" in repr(there)

    run(program)


async def _sizes(comm: Any) -> list[int]:
    found = []
    try:
        while True:
            found.append((await comm.read())["x"].size)
    except CommClosedError:
        return found


def test_a_connection_that_was_closed_here_is_closed() -> None:
    """Also if messages have come that nobody has read."""

    async def program() -> None:
        for ends in ("abort", "close"):
            async with both_ends() as (there, here):
                for _ in range(3):
                    await there.write({"x": to_serialize(np.ones(50_000))})
                assert (await here.read())["x"].size == 50_000
                await asyncio.sleep(0.05)
                found = getattr(here, ends)()
                if found is not None:
                    await found
                assert here.closed()
                with pytest.raises(CommClosedError):
                    await here.read()

    run(program)


def test_what_came_before_the_end_of_the_peer_is_read() -> None:
    async def program() -> None:
        async with both_ends() as (there, here):
            for number in range(5):
                await there.write({"x": number})
            there.abort()
            await asyncio.sleep(0.05)
            assert [(await here.read())["x"] for _ in range(5)] == [*range(5)]
            with pytest.raises(CommClosedError):
                await here.read()
            assert here.closed()

    run(program)


def test_nothing_is_believed_that_was_lent_by_an_end_that_is_gone() -> None:
    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.high-water": "1 MiB"}):
            async with both_ends() as (there, here):
                await there.write({"x": 1})
                await there.write({"x": to_serialize(np.ones(1 << 19))})
                x = np.ones(1 << 20)
                await there.write({"x": to_serialize(x)})
                await asyncio.sleep(0.1)  # the second message is ahead of the reader: the third one waits
                there.abort()
                x[:] = 7
                await asyncio.sleep(0.1)
                found = []
                with suppress(CommClosedError):
                    while True:
                        found.append((await here.read())["x"])
                assert found[0] == 1 and len(found) < 4 and here.closed()
                assert all((np.asarray(each) == 1).all() for each in found)

    run(program)


def test_a_close_beside_a_writer_that_waits() -> None:
    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.high-water": "1 MiB", "distributed.comm.timeouts.tcp": "1 s"}):
            async with both_ends() as (there, _):
                for _ in range(2):
                    await there.write({"x": to_serialize(np.ones(1 << 20))})
                writing = asyncio.ensure_future(there.write({"x": to_serialize(np.ones(1 << 20))}))
                await asyncio.sleep(0.05)
                await asyncio.gather(there.close(), there.close())
                (found,) = await asyncio.gather(writing, return_exceptions=True)
                assert isinstance(found, (int, CommClosedError))  # the writer may be the first to give up waiting

    run(program)


def test_a_cancelled_close_closes() -> None:
    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.high-water": "1 MiB"}):
            async with both_ends() as (there, here):
                for _ in range(2):
                    await there.write({"x": to_serialize(np.ones(1 << 20))})
                closing = asyncio.ensure_future(there.close())
                await asyncio.sleep(0.05)
                closing.cancel()
                await asyncio.wait([closing])
                assert there.closed()
                with suppress(CommClosedError):
                    while True:
                        await here.read()

    run(program)


def test_two_readers_are_refused() -> None:
    async def program() -> None:
        async with both_ends() as (there, _):
            first = asyncio.ensure_future(there.read())
            await asyncio.sleep(0.01)
            with pytest.raises(RuntimeError):
                await there.read()
            with pytest.raises(CommClosedError):
                await first

    run(program)


def test_an_end_is_aborted_from_another_thread() -> None:
    async def program() -> None:
        async with both_ends() as (there, here):
            readers = [asyncio.ensure_future(each.read()) for each in (there, here)]
            await asyncio.sleep(0.01)
            await asyncio.to_thread(there.abort)
            for each in readers:
                with pytest.raises(CommClosedError):
                    await each
            assert there.closed() and here.closed()

    run(program)


def test_a_handshake_that_is_aborted_ends() -> None:
    """By each end, in each part of it."""

    async def program() -> None:
        for delay_s in (0, 0.0002, 0.0005, 0.001, 0.002, 0.005):
            listener = await listen("hocket://127.0.0.1:0", _until_closed)
            connecting = asyncio.ensure_future(connect(listener.contact_address, timeout=0.5))
            await asyncio.sleep(delay_s)
            listener.stop()
            listener.abort_handshaking_comms()
            await asyncio.wait([connecting], timeout=scaled(20))
            assert connecting.done()
            if connecting.exception() is None:
                connecting.result().abort()

    run(program)


async def _until_closed(comm: Any) -> None:
    with suppress(CommClosedError):
        await comm.read()


def test_a_cancelled_read_closes() -> None:
    async def program() -> None:
        async with both_ends() as (there, here):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await there.read()
            assert there.closed()
            with pytest.raises(CommClosedError):
                await here.read()

    run(program)


def test_a_killed_peer_is_noticed() -> None:
    with echoing() as (address, process):

        async def program() -> float:
            comm = await connect(address)
            await comm.write({"x": 1})
            await comm.read()
            reading = asyncio.ensure_future(comm.read())
            await asyncio.sleep(0)
            process.send_signal(signal.SIGKILL)
            begin_s = time.monotonic()
            with pytest.raises(CommClosedError):
                await reading
            assert comm.closed()
            return time.monotonic() - begin_s

        assert run(program) < scaled(5)


def test_a_peer_that_ends_with_much_unread_leaves_nothing_behind() -> None:
    """200 cycles of connecting, sending and closing or killing: no file descriptor is left."""
    with echoing() as (address, _):

        async def cycle(number: int) -> None:
            comm = await connect(address)
            await comm.write({"x": to_serialize(np.ones(100_000))})
            if number % 3 == 0:
                assert (await comm.read())["x"].size == 100_000
            if number % 2:
                comm.abort()
            else:
                await comm.close()

        async def program() -> None:
            for number in range(20):
                await cycle(number)
            gc.collect()
            before = descriptors()
            for number in range(180):
                await cycle(number)
            gc.collect()
            await asyncio.sleep(0.1)
            assert descriptors() <= before + 2

        run(program)


def test_a_stopped_listener_lets_nobody_wait() -> None:
    async def program() -> None:
        listener = await listen("hocket://127.0.0.1:0", print)
        host, port = listener.contact_address.removeprefix("hocket://").split(":")
        sock = socket.create_connection((host, int(port)))
        listener.stop()
        listener.abort_handshaking_comms()
        await asyncio.sleep(0.1)
        sock.settimeout(scaled(10))
        received = b"more"
        while received:  # a greeting may have come
            try:
                received = sock.recv(1000)
            except ConnectionResetError:
                break
        sock.close()

    run(program)
