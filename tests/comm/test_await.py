"""``await work`` in asyncio, with and without a progress thread."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import hocket as hk


async def _program(comm: hk.Communicator) -> list[str]:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticker = asyncio.create_task(tick())
    x, y = np.ones(300_000), np.full(3, comm.rank)
    works: list[Any] = [comm.all_reduce(x, async_op=True), comm.all_reduce(y, "max", async_op=True)]
    if comm.rank == 1:
        works.reverse()

    async def wait(work: Any) -> None:
        await work

    await asyncio.gather(*map(wait, works))
    assert (x == comm.size).all() and (y == comm.size - 1).all()
    for work in works:
        await work  # again: any number of times is allowed

    # The loop keeps running while the other rank does something else.
    if comm.rank == 0:
        before = ticks
        await asyncio.sleep(0.2)
        assert ticks > before
        await comm.barrier(async_op=True)
    else:
        before = ticks
        await comm.barrier(async_op=True)
        assert ticks > before + 10

    # A cancelled wait does not cancel the operation.
    work = comm.all_reduce(x, async_op=True) if comm.rank == 1 else None
    if work is not None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(work), 0.05)
        assert not work.done
        comm.send(np.ones(1), 0)
        await work
    else:
        comm.recv(np.empty(1), 1)
        await comm.all_reduce(x, async_op=True)
    assert (x == comm.size**2).all()

    # await raises the same errors as wait().
    texts = []
    try:
        await comm.all_reduce(np.ones(3 + comm.rank), async_op=True)
    except hk.CollectiveMismatch as error:
        texts.append(str(error))
    ticker.cancel()
    return texts


def _run(comm: hk.Communicator, progress: str) -> list[str]:
    comm.finalize()
    with hk.init(backends="shm", timeout=20, progress=progress) as comm:
        return asyncio.run(_program(comm))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("progress", ["caller", "thread"])
def test_await(progress: str) -> None:
    for (text,) in hk.spawn(_run, 2, progress, timeout=50):
        assert "all_reduce(sum) of 24 bytes float64" in text and "32 bytes" in text


def _timeout(comm: hk.Communicator, progress: str) -> tuple[int, ...]:
    comm.finalize()
    comm = hk.init(backends="shm", timeout=1.0, progress=progress)
    if comm.rank == 1:
        with pytest.raises(hk.HocketError):
            comm.recv(np.empty(1), 0, timeout=20)
        return ()

    async def wait() -> None:
        await comm.all_reduce(np.ones(1), async_op=True)

    with pytest.raises(hk.CommTimeout) as caught:
        asyncio.run(wait())
    return caught.value.ranks


@pytest.mark.timeout(60)
@pytest.mark.parametrize("progress", ["caller", "thread"])
def test_deadline(progress: str) -> None:
    assert hk.spawn(_timeout, 2, progress, timeout=50)[0] == (1,)
