"""Program of two ranks, as if they were on two hosts: one case of the tests of carriers, given by name.

Rank 0 listens, rank 1 connects. Both print one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import dask
import numpy as np
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import to_serialize

import hocket as hk
from hocket.dask import moving

DEADLINE_S = 60.0
SIZES = (0, 1, 1000, 64 << 10, (64 << 10) + 8, 1 << 20, (3 << 20) + 40, 20 << 20)


def array(size: int, number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, size, np.uint8)


async def _send_all(comm: Any, first: int) -> None:
    for number, size in enumerate(SIZES, first):
        await comm.write({"x": to_serialize(array(size, number)), "y": to_serialize(array(size // 3, number + 50))})


async def _check_all(comm: Any, first: int) -> None:
    for number, size in enumerate(SIZES, first):
        found = await comm.read()
        np.testing.assert_array_equal(found["x"], array(size, number))
        np.testing.assert_array_equal(found["y"], array(size // 3, number + 50))


async def exchange(comm: Any, rank: int) -> None:
    """Messages of all sizes, both ways at the same time."""
    for first in (0, 100):
        await asyncio.gather(_send_all(comm, first + rank), _check_all(comm, first + 1 - rank))


async def abort(comm: Any, rank: int) -> None:
    """One end goes away while large messages are on their way; what has arrived before is whole."""
    if rank == 1:
        for number in range(8):
            await comm.write({"x": to_serialize(array(8 << 20, number))})
        await asyncio.sleep(0.005)
        comm.abort()
        return
    try:
        for number in range(9):
            np.testing.assert_array_equal((await comm.read())["x"], array(8 << 20, number))
    except CommClosedError:
        return
    raise AssertionError("the connection was not closed")


async def behind(comm: Any, rank: int) -> None:
    """A reader that is far behind holds its peer up, and gets everything."""
    if rank == 1:
        await asyncio.gather(*(comm.write({"x": to_serialize(array(8 << 20, number))}) for number in range(12)))
        assert (await comm.read()) == "all"
        return
    await asyncio.sleep(0.3)
    for number in range(12):
        np.testing.assert_array_equal((await comm.read())["x"], array(8 << 20, number))
    await comm.write("all")


async def other_world(comm: Any, rank: int) -> None:
    """Two processes of two worlds that look alike: nothing that one sends arrives at the other one."""
    await exchange(comm, rank)


async def nothing_arrives(*_: object) -> bool:
    """In the place of `carriers.probe`."""
    await asyncio.sleep(0.1)
    return False


CASES: dict[str, Callable[[Any, int], Awaitable[None]]] = {
    each.__name__: each for each in (exchange, abort, behind, other_world)
}


async def connection(rank: int, comm: hk.Communicator) -> Any:
    if rank == 1:
        return await connect(comm.broadcast_object(None, 0))
    accepted: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handle(each: Any) -> None:
        accepted.set_result(each)

    listener = await listen("hocket://127.0.0.1:0", handle)
    comm.broadcast_object(listener.contact_address, 0)
    found = await accepted
    listener.stop()
    return found


async def main(case: str, comm: hk.Communicator) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S):
        each = await connection(comm.rank, comm)
        path = each.extra_info["path"]
        await CASES[case](each, comm.rank)
        info = each.extra_info
        await each.close()
        return {**info, "path": path}


if __name__ == "__main__":
    library, case = sys.argv[1:]
    moving.connect_locally = lambda _: None  # as if it were another host
    if case == "other_world":
        moving.probe = nothing_arrives
    dask.config.set({"distributed.comm.hocket.carriers": [library], "distributed.comm.hocket.high-water": "32 MiB"})
    comm = hk.init(backends=("shm", "mpi") if library == "mpi" else "shm", timeout=DEADLINE_S)
    print(json.dumps({"rank": comm.rank, **asyncio.run(main(case, comm))}), flush=True)
    comm.finalize()
