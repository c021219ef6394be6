"""Processes at the other end of a connection that can be killed and stopped: forked, so that one takes milliseconds."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from distributed.comm import CommClosedError, connect
from distributed.protocol import to_serialize

from hocket.dask.backend import HocketBackend

MIB = 1 << 20
ANYWHERE = f"{HocketBackend.scheme}://127.0.0.1:0"
PATHS = ("memory", "tcp", "plain tcp")
_ECHOES = """
import asyncio, ctypes, os, signal, sys
import numpy
import hocket.dask.backend
from distributed.comm import listen
from distributed.protocol import to_serialize

async def echo(comm):
    try:
        while True:
            await comm.write({"x": to_serialize((await comm.read())["x"])})
    except OSError:
        pass

async def main(address):
    async with await listen(address, echo) as listener:
        print(os.getpid(), listener.contact_address, flush=True)
        await asyncio.Event().wait()

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are killed
for line in sys.stdin:
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # none outlives this process
        asyncio.run(main(line.strip()))
"""


class Peer:
    """A process that sends every message back.

    Args:
        pid: of the process.
        address: on which it listens.
    """

    def __init__(self, pid: int, address: str) -> None:
        self.pid, self.address = pid, address

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> float:
        """Kill it, and return when that was, in seconds of `time.monotonic`."""
        begin_s = time.monotonic()
        self.signal(signal.SIGKILL)
        return begin_s

    async def stop(self) -> None:
        """Stop it, and wait until it stands still."""
        self.signal(signal.SIGSTOP)
        while status_of(self.pid)["State"][0] != "T":
            await asyncio.sleep(0.001)

    def go_on(self) -> None:
        """Continue it."""
        self.signal(signal.SIGCONT)


class Peers:
    """Starts peers.

    Args:
        process: that forks them.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Of the process that forks them."""
        return self._process.pid

    def start(self, address: str = ANYWHERE) -> Peer:
        """Return a new peer that listens on an address."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(address, file=self._process.stdin, flush=True)
        pid, contact = self._process.stdout.readline().split()
        return Peer(int(pid), contact)


@contextmanager
def peers(**variables: str) -> Iterator[Peers]:
    """Yield what starts peers; at the end they are all killed.

    Args:
        variables: of their environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _ECHOES],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables},
    )  # fmt: skip
    try:
        yield Peers(process)
    finally:
        process.kill()
        process.communicate()


async def connect_by(path: str, address: str) -> Any:
    """Return a connection that goes a path; "tcp" only if this end reaches no local socket."""
    if path == "plain tcp":  # the peer listens with hocket, and this end speaks Dask's TCP only
        return await connect(f"tcp://{address.partition('://')[2]}")
    comm = await connect(address)
    assert comm.extra_info["path"] == path
    return comm


async def exchange(comm: Any, sent: np.ndarray) -> None:
    """Send an array to a peer, and compare what it sends back."""
    await comm.write({"x": to_serialize(sent)})
    np.testing.assert_array_equal((await comm.read())["x"], sent)


async def send_until_closed(comm: Any, sent: np.ndarray) -> int:
    """Send an array again and again; return how often, once the connection is closed."""
    num_sent = 0
    try:
        while True:
            await comm.write({"x": to_serialize(sent)})
            num_sent += 1
            await asyncio.sleep(0.001)  # Dask's TCP lets a writer never wait, nor others run
    except CommClosedError:
        return num_sent


async def read_until_closed(comm: Any) -> int:
    """Return the number of messages that came before the connection was closed."""
    num_read = 0
    try:
        while True:
            await comm.read()
            num_read += 1
    except CommClosedError:
        return num_read


async def seconds_to_notice(path: str, peer: Peer, state: str) -> float:
    """Kill a peer, and return the seconds until each reader and writer has distributed's error of a closed connection.

    Args:
        path: of the connection.
        peer: will be killed.
        state: "idle": the end waits for a message; "busy": large messages are on their way both ways; "held": the peer
            is stopped, and a writer waits at the high-water mark.
    """
    comm = await connect_by(path, peer.address)
    x = np.arange(MIB // 8)
    await exchange(comm, x)
    tasks = [asyncio.ensure_future(read_until_closed(comm))]
    if state == "held":
        await peer.stop()
    if state != "idle":
        tasks.append(asyncio.ensure_future(send_until_closed(comm, x)))
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in tasks)
    begin_s = peer.kill()
    await asyncio.wait(tasks)
    took_s = time.monotonic() - begin_s
    assert comm.closed() and not any(each.exception() for each in tasks)
    return took_s


def status_of(pid: int | str = "self") -> dict[str, str]:
    """Return what the kernel tells of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (each.partition(":") for each in lines)}


def resident_nbytes(pid: int | str = "self") -> int:
    """Return the memory of a process that is resident, what it shares included."""
    return int(status_of(pid)["VmRSS"].split()[0]) << 10


def descriptors_of(pid: int | str = "self") -> list[str]:
    """Return what the file descriptors of a process lead to."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            found.append(os.readlink(each))
    return found


def shared_mappings_of(pid: int | str = "self") -> list[str]:
    """Return the mappings of a process that are segments of shared memory, or lie in /dev/shm, but for its recorder."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [each for each in lines if re.search(r"hocket-frames|memfd:|/dev/shm/(?!hocket-recorder)", each)]


def children() -> list[int]:
    """Return the children of this process, those included that have ended and that nobody has waited for."""
    return [int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]
