"""Messages arrive as they were sent, on every path, and what is broken ends with distributed's error."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")

from distributed.comm import connect, listen  # noqa: E402
from distributed.comm.core import CommClosedError, FatalCommClosedError  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402

from hocket.dask.greeting import VERSION  # noqa: E402

from ..naming import assert_names  # noqa: E402
from .connections import both_ends, echoing, run  # noqa: E402

ARRAYS = [
    np.arange(10),
    np.arange(0),
    np.random.default_rng(0).standard_normal((300, 700)),
    np.asfortranarray(np.arange(1_000_000.0).reshape(1000, 1000)),
    np.arange(3_000_000, dtype=np.uint8)[::3],
    np.array(["a", "bc"]),
]


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, np.ndarray):
        return isinstance(found, np.ndarray) and found.dtype == wanted.dtype and np.array_equal(found, wanted)
    return bool(found == wanted)


async def exchange(comm: Any, read: Any = None) -> None:
    """Send messages of many forms through a connection whose other end sends them back, or is `read`."""
    for each in (*ARRAYS, {"a": (1, None, "x", b"y")}, b"", b"x" * 3_000_000, tuple(range(1000))):
        await comm.write({"x": to_serialize(each)})
        message = await (read or comm).read()
        assert same(message["x"], each)
        if isinstance(message["x"], np.ndarray) and message["x"].size:
            message["x"][...] = message["x"]  # it is writable
    many = [to_serialize(np.full(size, size)) for size in (1, 10, 20_000, 40_000) * 300]
    await comm.write({"x": many})
    found = (await (read or comm).read())["x"]
    assert len(found) == 1200 and all(each.size == each[0] for each in found)


@pytest.mark.parametrize("scheme", ["hocket", "mpi"])
def test_in_one_process(scheme: str) -> None:
    async def program() -> None:
        async with both_ends(f"{scheme}://127.0.0.1:0") as (there, here):
            assert {there.extra_info["path"], here.extra_info["path"]} == {"process"}
            assert there.peer_address == here.local_address and there.same_host
            await exchange(there, here)
            await exchange(here, there)

    run(program)


@pytest.mark.parametrize("single_copy", ["1", "0"])
def test_between_processes(single_copy: str) -> None:
    """Also with one that may not read this one's memory."""
    with echoing(HOCKET_SINGLE_COPY=single_copy) as (address, process):

        async def program() -> None:
            comm = await connect(address)
            for _ in range(3):
                await exchange(comm)
            info = comm.extra_info
            assert (info["path"], info["peer_pid"]) == ("memory", process.pid)
            assert info["nbytes_shared"] and info["nbytes_mapped"]
            assert bool(info["nbytes_lent"]) == (single_copy == "1") and info["nbytes_borrowed"]
            assert info["num_sent"] == info["num_received"]
            await comm.close()

        run(program)


def test_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between hosts: here without local sockets."""
    monkeypatch.setattr("hocket.dask.listener.LocalSocket", _no_local_socket)

    async def program() -> None:
        async with both_ends() as (there, here):
            assert {there.extra_info["path"], here.extra_info["path"]} == {"tcp"}
            await exchange(there, here)
            await exchange(here, there)

    run(program)


def _no_local_socket(*_: object) -> None:
    raise OSError("this system has none")


@pytest.mark.parametrize(("listening", "connecting"), [("tcp", "hocket"), ("mpi", "tcp"), ("hocket", "mpi")])
def test_schemes_reach_each_other(listening: str, connecting: str) -> None:
    async def program() -> None:
        async with both_ends(f"{listening}://127.0.0.1:0", connecting) as (there, here):
            await exchange(there, here)
            await exchange(here, there)
            paths = {each.extra_info.get("path", "") for each in (there, here)}
            assert paths == ({"process"} if "tcp" not in (listening, connecting) else {"plain tcp", ""})

    run(program)


@pytest.mark.full
def test_a_frame_beyond_31_bits() -> None:
    x = np.ones((1 << 31) + 5, np.uint8)
    x[-5:] = range(5)
    with echoing() as (address, _):

        async def program() -> None:
            comm = await connect(address)
            await comm.write({"x": to_serialize(x)})
            assert np.array_equal((await comm.read())["x"], x)
            await comm.close()

        run(program, 200)


def test_a_writer_does_not_wait_for_one_message_and_waits_for_many() -> None:
    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.high-water": "1 MiB"}):
            async with both_ends() as (there, here):
                x = to_serialize(np.ones(1 << 20))
                await there.write({"x": x})  # nobody reads
                await there.write({"x": x})
                third = asyncio.ensure_future(there.write({"x": x}))
                done, _ = await asyncio.wait([third], timeout=0.2)
                assert not done
                for _ in range(3):
                    assert (await here.read())["x"].size == 1 << 20
                await third

    run(program)


def test_two_ends_that_both_write_much_go_on() -> None:
    async def program() -> None:
        with dask.config.set({"distributed.comm.hocket.high-water": "1 MiB"}):
            async with both_ends() as (there, here):

                async def end(comm: Any) -> int:
                    for _ in range(10):
                        await comm.write({"x": to_serialize(np.ones(1 << 19))})
                    return sum([(await comm.read())["x"].size for _ in range(10)])

                assert await asyncio.gather(end(there), end(here)) == [10 << 19] * 2

    run(program)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<Q", 1 << 60),
        struct.pack("<QQQ", 16, 1, 1 << 50),
        struct.pack("<QQQ", 20, 1, 4) + b"\xff\xff\xff\xff",
        struct.pack("<QQQ", 17, 1, 1) + b"\x05",
        struct.pack("<QQQ", 24, 2, 8) + b"12345678",
        b"",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_a_stranger_gets_a_closed_connection(data: bytes) -> None:
    async def program() -> None:
        handled: list[Any] = []

        async def handle(comm: Any) -> None:
            handled.append(comm)

        with dask.config.set({"distributed.comm.timeouts.connect": "500 ms"}):
            async with await listen("hocket://127.0.0.1:0", handle) as listener:
                host, port = listener.contact_address.removeprefix("hocket://").split(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(data)
                await writer.drain()
                with suppress(ConnectionResetError):
                    while await reader.read(1000):  # the listener's greeting, then the end
                        pass
                writer.close()
                comm = await connect(listener.contact_address)  # it serves others
                await comm.close()
        assert len(handled) <= 1

    run(program)


def test_another_version_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with echoing() as (address, _):
        monkeypatch.setattr("hocket.dask.greeting.VERSION", 7)

        async def program() -> None:
            with pytest.raises(FatalCommClosedError) as caught:
                await connect(address)
            assert_names(str(caught.value), "7", str(VERSION))

        run(program)


async def _told(address: str) -> Any:
    return await (await connect(address)).read()


@pytest.mark.parametrize(
    "word", [3, {}, {"version": "2"}, {"version": VERSION, "host": 3}, {"version": VERSION, "host": "x"}]
)
def test_a_malformed_word(word: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with echoing() as (address, _):
        monkeypatch.setattr("hocket.dask.opening.CommOpening._word", lambda _: word)

        async def program() -> None:
            with pytest.raises(CommClosedError):
                await _told(address)

        run(program)
        monkeypatch.undo()

        async def others() -> None:
            comm = await connect(address)
            await comm.close()

        run(others)


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("hocket://127.0.0.1", ValueError),
        ("hocket://::1:80", ValueError),
        ("hocket://127.0.0.1:x", ValueError),
        ("hockett://127.0.0.1:80", ValueError),
        ("hocket://127.0.0.1:1", OSError),
    ],
)
def test_bad_addresses(address: str, error: type[Exception]) -> None:
    async def program() -> None:
        with pytest.raises(error):
            await connect(address, timeout=0.3)

    run(program)


def test_encryption() -> None:
    async def program() -> None:
        with pytest.raises(RuntimeError, match="encryption"):
            await listen("hocket://127.0.0.1:0", print, require_encryption=True)
        with pytest.raises(RuntimeError, match="encryption"):
            await connect("hocket://127.0.0.1:9", require_encryption=True)

    run(program)
