"""Connections of two ends in one event loop, or with a process that echoes, for the tests of the protocol."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from distributed.comm import connect, listen

from ..load import scaled

_T = TypeVar("_T")
ROOT = Path(__file__).parents[2]
_ECHO = """
import asyncio, sys
from distributed.comm import listen

async def echo(comm):
    try:
        while True:
            await comm.write(await comm.read())
    except OSError:
        pass

async def main():
    async with await listen(sys.argv[1], echo) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def run(program: Callable[[], Awaitable[_T]], seconds: float = 60.0) -> _T:
    """Run a coroutine in a new event loop, with a deadline."""

    async def main() -> _T:
        async with asyncio.timeout(scaled(seconds)):
            return await program()

    return asyncio.run(main())


@asynccontextmanager
async def both_ends(
    address: str = "hocket://127.0.0.1:0", to: str | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the end that has connected, and the one that has listened.

    Args:
        address: on which to listen.
        to: scheme of the connector; None: that of the listener.
        options: of both.
    """
    accepted: asyncio.Queue[Any] = asyncio.Queue()
    is_over = asyncio.Event()

    async def handle(comm: Any) -> None:
        await accepted.put(comm)
        await is_over.wait()

    async with await listen(address, handle, **options) as listener:
        contact = listener.contact_address
        there = await connect(contact if to is None else f"{to}://{contact.partition('://')[2]}", **options)
        here = await accepted.get()
        try:
            yield there, here
        finally:
            is_over.set()
            there.abort()
            here.abort()


@contextmanager
def echoing(address: str = "hocket://127.0.0.1:0", **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the address of a process that sends every message back, and the process."""
    with listening([_ECHO, address], **variables) as found:
        yield found


@contextmanager
def listening(program: list[str], **variables: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a program of Python that prints where it listens; yield the address, and the process.

    Args:
        program: its text, and its arguments.
        variables: of its environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", *program], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.communicate()


def descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
