"""Two users on one host: their processes exchange messages over TCP, and nobody reaches the memory of the other one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")

from distributed.comm import connect, listen  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402

from hocket import _native  # noqa: E402
from hocket.dask import opening  # noqa: E402
from hocket.dask.backend import HocketBackend  # noqa: E402

from ..load import scaled  # noqa: E402
from .connections import both_ends, run  # noqa: E402
from .peers import MIB, exchange, shared_mappings_of  # noqa: E402

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
]
ANYWHERE = f"{HocketBackend.scheme}://127.0.0.1:0"
AT_ONCE_S = scaled(5)
"""Far below the time that an end has for its token, `distributed.comm.timeouts.connect`."""
# Becomes another user once everything is loaded: that user may be allowed to read neither Python nor hocket. Then it
# lets itself be looked at again, as a process has it that was this user's from its beginning.
_OTHER_USER = """
import asyncio, ctypes, json, os, socket, struct, sys, time
import numpy as np
from distributed.comm import connect, listen
from distributed.protocol import to_serialize

from hocket import _native

async def echo(comm):
    try:
        while True:
            await comm.write({"x": to_serialize((await comm.read())["x"])})
    except OSError:
        pass

async def exchange(address, sizes):
    comm = await connect(address)
    for size in sizes:
        x = np.arange(size)
        await comm.write({"x": to_serialize(x)})
        assert np.array_equal((await comm.read())["x"], x)
    found = comm.extra_info
    await comm.close()
    return found

def refusal(function, *arguments):
    try:
        return "got " + repr(function(*arguments))[:100]
    except OSError as error:
        return type(error).__name__

def read_file(path):
    with open(path, "rb") as file:
        return file.read(1)

def read_memory(pid, address):
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]
    byte = ctypes.create_string_buffer(1)
    parts = Part(ctypes.addressof(byte), 1), Part(address, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.process_vm_readv(pid, ctypes.byref(parts[0]), 1, ctypes.byref(parts[1]), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")
    return byte.raw

def talk_locally(name, token):
    begin_s, came = time.monotonic(), b""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\\0" + name)
        sock.settimeout(20)
        try:
            if token:
                body = json.dumps({"token": token, "address": 4096, "digits": "00" * 16, "device": ""}).encode()
                sock.sendall(struct.pack("<I", len(body)) + body)
            came = sock.recv(1000)
        except (BrokenPipeError, ConnectionResetError):
            pass
    return {"came": len(came), "seconds": time.monotonic() - begin_s}

def look(pid, address, digits, paths):
    folders = {path: refusal(os.listdir, path) for path in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files")}
    files = {path: refusal(read_file, path) for path in paths}
    reads = _native.reads_cookie(pid, address, bytes.fromhex(digits))
    return {**folders, **files, "memory": refusal(read_memory, pid, address), "cookie": reads}

async def main():
    async with await listen("hocket://127.0.0.1:0", echo) as listener:
        await exchange(listener.contact_address, [100_000] * 3)  # loads what is loaded at its first use
        if user := int(sys.argv[1]):
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    async with await listen("hocket://127.0.0.1:0", echo) as listener:  # of that user
        print(json.dumps(listener.contact_address), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, *arguments = json.loads(line)
            found = {"exchange": exchange, "talk": talk_locally, "look": look}[name](*arguments)
            print(json.dumps(await found if name == "exchange" else found), flush=True)

asyncio.run(main())
"""


class OtherProcess:
    """A process that listens, and does what it is asked for.

    Args:
        process: it runs `_OTHER_USER`.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.address = str(self._answer())

    def ask(self, name: str, *arguments: Any) -> Any:
        """Let it do something; wait for the answer."""
        assert self._process.stdin is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@contextmanager
def _process_of(user: int) -> Iterator[OtherProcess]:
    process = subprocess.Popen(
        [sys.executable, "-c", _OTHER_USER, str(user)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield OtherProcess(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def stranger() -> Iterator[OtherProcess]:
    """A process of another user."""
    with _process_of(65534) as process:
        assert os.stat(f"/proc/{process.pid}").st_uid == 65534
        yield process


@pytest.fixture(scope="module")
def friend() -> Iterator[OtherProcess]:
    """Such a process of this user, to see that what a stranger is refused is there."""
    with _process_of(0) as process:
        yield process


async def _echo(comm: Any) -> None:
    try:
        while True:
            await comm.write({"x": to_serialize((await comm.read())["x"])})
    except OSError:
        pass


def test_a_listener_of_another_user(stranger: OtherProcess) -> None:
    async def program() -> None:
        comm = await connect(stranger.address)
        for size in (10, 100_000, MIB):
            await exchange(comm, np.arange(size))
        info = comm.extra_info
        assert (info["path"], info["peer_pid"]) == ("tcp", 0)
        assert not (info["nbytes_shared"] or info["nbytes_lent"] or info["nbytes_mapped"] or info["nbytes_borrowed"])
        await comm.close()

    run(program)


@pytest.mark.parametrize(("whose", "path"), [("stranger", "tcp"), ("friend", "memory")])
def test_another_user_connects(request: pytest.FixtureRequest, whose: str, path: str) -> None:
    other = request.getfixturevalue(whose)

    async def program() -> None:
        async with await listen(ANYWHERE, _echo) as listener:
            info = await asyncio.to_thread(other.ask, "exchange", listener.contact_address, [10, 100_000, MIB])
        assert info["path"] == path
        assert bool(info["nbytes_shared"] + info["nbytes_lent"]) == (path == "memory")

    run(program)


@pytest.mark.parametrize("knows_token", [False, True])
def test_a_local_socket_lets_no_stranger_in(
    stranger: OtherProcess, monkeypatch: pytest.MonkeyPatch, knows_token: bool
) -> None:
    """Neither one that says nothing, nor one that knows the token of a connection before its end has told it: that end
    gets its connection nevertheless."""
    found: list[dict[str, Any]] = []
    move = opening.move_as_connector

    async def after_a_theft(sock: Any, word: Any, *others: Any) -> Any:
        found.append(await asyncio.to_thread(stranger.ask, "talk", word.local_name, word.token if knows_token else ""))
        if not knows_token:  # one of this user has time to tell it
            with socket.socket(socket.AF_UNIX) as mine:
                mine.connect(f"\0{word.local_name}")
                mine.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    await asyncio.to_thread(mine.recv, 1)
        return await move(sock, word, *others)

    monkeypatch.setattr(opening, "move_as_connector", after_a_theft)

    async def program() -> None:
        async with both_ends() as (there, here):
            assert there.extra_info["path"] == here.extra_info["path"] == "process"
            x = np.arange(MIB)
            await there.write({"x": to_serialize(x)})
            np.testing.assert_array_equal((await here.read())["x"], x)

    begin_s = time.monotonic()
    run(program)
    assert time.monotonic() - begin_s < 2 * AT_ONCE_S
    assert found[0]["came"] == 0 and found[0]["seconds"] < AT_ONCE_S


def test_a_token_is_worth_nothing_to_a_stranger(stranger: OtherProcess, friend: OtherProcess) -> None:
    """A stranger may learn the name of the local socket, and a token of its own, by connecting; no more."""

    async def program() -> None:
        async with await listen(ANYWHERE, _echo) as listener:
            host, _, port = listener.contact_address.partition("://")[2].partition(":")
            with socket.create_connection((host, int(port))) as sock:
                sock.settimeout(scaled(20))
                greeting = await asyncio.to_thread(sock.recv, 10_000)
                name, token = (re.search(rb"hocket-dask-\w{32}", greeting), re.search(rb"token\W+(\w{32})", greeting))
                assert name is not None and token is not None
                said = "talk", name[0].decode(), token[1].decode()
                talked = await asyncio.to_thread(stranger.ask, *said)
                assert talked["came"] == 0 and talked["seconds"] < AT_ONCE_S
                # Whoever is of this user is let in with it, until the connection that it belongs to ends.
                welcome = asyncio.ensure_future(asyncio.to_thread(friend.ask, *said))
                await asyncio.sleep(0.3)
                assert not welcome.done()
            await welcome
            comm = await connect(listener.contact_address)
            await exchange(comm, np.arange(MIB))
            assert comm.extra_info["path"] == "process"
            await comm.close()

    run(program)


def test_segments_and_memory_are_closed_to_strangers(stranger: OtherProcess, friend: OtherProcess) -> None:
    """Neither the file descriptor of a segment that the peer does not know yet, nor the mappings, nor the memory."""
    pid = os.getpid()

    async def program() -> None:
        comm = await connect(friend.address)
        for _ in range(3):
            await exchange(comm, np.arange(MIB))
        await exchange(comm, np.arange(MIB // 8))  # a segment of another size is made, and nobody has it yet
        await asyncio.sleep(0.1)
        fds = [each for each in Path(f"/proc/{pid}/fd").iterdir() if "hocket-frames" in _target(each)]
        mapped = [each.split()[0] for each in shared_mappings_of() if "hocket-frames" in each]
        assert fds and len(mapped) > 1
        paths = [*map(str, fds), *(f"/proc/{pid}/map_files/{each}" for each in mapped), f"/proc/{pid}/mem"]
        address, digits = _native.memory_cookie()
        looks = [
            await asyncio.to_thread(each.ask, "look", pid, address, digits.hex(), paths) for each in (stranger, friend)
        ]
        await comm.close()
        cookies = [each.pop("cookie") for each in looks]
        assert cookies == [False, True]
        assert set(looks[0].values()) == {"PermissionError"}, looks[0]
        # This user's are there; /proc/PID/mem has nothing at its beginning.
        there = {name: each for name, each in looks[1].items() if not name.endswith(("/mem", "/map_files"))}
        for name, each in there.items():
            assert each.startswith("got") or "/map_files/" in name, (name, each)  # these need a capability, too

    run(program)


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
