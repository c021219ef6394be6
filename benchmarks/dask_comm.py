"""Messages of Dask over hocket's protocol against distributed's TCP and MPI4Dask's polled MPI.

Two processes; all arms are open at the same time in both, and take turns. A round trip is one message of Dask, a dict
with an array of double precision, whose receiver adds up all elements, and a small answer. A burst is several such
messages before one answer. hocket runs as it is installed, and with a reader that looks for 100 us before it sleeps.

"MPI, polled" is the protocol of MPI4Dask (arXiv 2101.08878), written for this benchmark: a header, sizes and frames by
non-blocking messages, each of which a coroutine tests again and again between rounds of the event loop. It needs both
processes in one MPI world, and keeps them busy. If distributed-ucxx is installed, it is measured, too.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any

import dask
import numpy as np
from claim import Options, PartResults, measure_with_facts, run_claim
from distributed.comm import connect, listen
from distributed.comm.utils import from_frames, to_frames
from distributed.protocol import to_serialize
from distributed.utils import nbytes
from libraries import job
from ranks import check, serve_all

import hocket as hk
from hocket.backends import _ucx
from hocket.comm.policy import format_nbytes
from hocket.measure import Comparison, Contender, Row, computed

KIB, MIB = 1 << 10, 1 << 20
TCP, OURS, SPINNING, POLLED = "tcp", "hocket", "hocket, 100 us of spinning", "MPI, polled"
UCXX = "ucxx"
_IDLE_S = 1.5
_MOST_IDLE = 0.02
"""Share of a processor."""
SPIN = {OURS: "0 us", SPINNING: "100 us"}


@dataclass(frozen=True)
class Exchange:
    """Messages from one process to the other before one answer.

    Args:
        size: bytes of the array of each; 0: without an array.
        count: of messages.
    """

    size: int
    count: int = 1

    @property
    def label(self) -> str:
        what = format_nbytes(self.size) if self.size else "no array"
        return f"round trip, {what}" if self.count == 1 else f"{self.count} x {what}"

    @cached_property
    def message(self) -> dict[str, Any]:
        return {"x": to_serialize(np.ones(self.size // 8)) if self.size else 1}


EXCHANGES = (
    *(Exchange(size) for size in (0, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)),
    *(Exchange(size, count) for size, count in ((64 * KIB, 64), (MIB, 16), (16 * MIB, 4), (64 * MIB, 2))),
)


class PolledComm:
    """A connection of MPI4Dask's protocol, between the two ranks of MPI's world."""

    _TAG = 100

    def __init__(self, rank: int) -> None:
        from mpi4py import MPI

        self._mpi, self._peer, self._tag = MPI, 1 - rank, self._TAG

    async def write(self, message: Any) -> None:
        frames = await to_frames(message, context={})
        sizes = np.array([nbytes(each) for each in frames], np.uint64)
        await self._until_done(self._send(struct.pack("<?Q", False, len(frames)), 0))
        await self._until_done(self._send(sizes, 1))
        for number, each in enumerate(frames):
            if nbytes(each):
                await self._until_done(self._send(each, 2 + number))

    async def read(self) -> Any:
        head = bytearray(9)
        await self._until_done(self._receive(head, 0))
        _, count = struct.unpack("<?Q", head)
        sizes = np.empty(count, np.uint64)
        await self._until_done(self._receive(sizes, 1))
        frames = [np.empty(int(size), np.uint8) for size in sizes]
        for number, each in enumerate(frames):
            if each.size:
                await self._until_done(self._receive(each, 2 + number))
        return await from_frames([memoryview(each) for each in frames])

    def _send(self, data: Any, tag: int) -> Any:
        return self._mpi.COMM_WORLD.Isend([data, self._mpi.BYTE], self._peer, self._tag + tag)

    def _receive(self, data: Any, tag: int) -> Any:
        return self._mpi.COMM_WORLD.Irecv([data, self._mpi.BYTE], self._peer, self._tag + tag)

    async def _until_done(self, request: Any) -> None:
        while not request.Test():
            await asyncio.sleep(0)


async def opened(comm: hk.Communicator) -> dict[str, Any]:
    """Return the connections of this rank: rank 0 has connected, rank 1 was connected to."""
    arms: dict[str, Any] = {}
    schemes = {TCP: "tcp", OURS: "hocket", SPINNING: "hocket"}
    if find_spec("distributed_ucxx") is not None:
        _ucx.load()  # MPI has a UCX of its own, with the same names of files
        schemes[UCXX] = "ucxx"
    for name, scheme in schemes.items():
        with dask.config.set({"distributed.comm.hocket.spin": SPIN.get(name, "0 us")}):
            arms[name] = await (connected(comm, scheme) if comm.rank == 0 else accepted(comm, scheme))
    return {**arms, POLLED: PolledComm(comm.rank)}


async def connected(comm: hk.Communicator, scheme: str) -> Any:
    return await connect(comm.broadcast_object(None, 1))


async def accepted(comm: hk.Communicator, scheme: str) -> Any:
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def handle(each: Any) -> None:
        found.set_result(each)

    listener = await listen(f"{scheme}://127.0.0.1:0", handle)
    comm.broadcast_object(listener.contact_address, 1)
    each = await found
    listener.stop()
    return each


async def ask(arm: Any, exchange: Exchange, iterations: int) -> None:
    """Send, and wait for the answers."""
    for _ in range(iterations):
        for _ in range(exchange.count):
            await arm.write(exchange.message)
        found = (await arm.read())["found"]
        check("the sum of an array", np.array(found), exchange.size // 8)


async def answer(arm: Any, exchange: Exchange, iterations: int) -> None:
    """Receive, touch every byte, and answer."""
    for _ in range(iterations):
        for _ in range(exchange.count):
            x = (await arm.read())["x"]
            found = float(x.sum()) if exchange.size else 0
        await arm.write({"found": found})


async def idle_share(arm: Any, rank: int) -> float:
    """Return the share of a processor that rank 0 takes while it waits for a message that comes much later."""
    if rank == 1:
        await asyncio.sleep(_IDLE_S)
        await arm.write({})
        return 0.0
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    await arm.read()
    return (time.process_time() - begin_cpu_s) / (time.perf_counter() - begin_s)


def serve_rank(_: str) -> None:
    """Run one rank."""
    comm = hk.init(backends=("shm", "mpi"), policy=hk.Policy.fixed({}), timeout=300)
    loop = asyncio.new_event_loop()
    arms = loop.run_until_complete(opened(comm))
    does = ask if comm.rank == 0 else answer

    def run(arm: Any, exchange: Exchange, iterations: int) -> None:
        loop.run_until_complete(does(arm, exchange, iterations))

    idle = {}
    for name, arm in arms.items():
        comm.barrier()
        idle[name] = loop.run_until_complete(idle_share(arm, comm.rank))
    contenders = [
        Contender(exchange.label, name, partial(run, arm, exchange))
        for exchange in EXCHANGES
        for name, arm in arms.items()
    ]
    serve_all(comm, contenders, idle)


def least(exchange: Exchange) -> float:
    """Return how many times as fast as TCP hocket must be."""
    if exchange.size == 0:
        return 2.0
    if exchange.size >= 16 * MIB:
        return 2.5
    return 2.0 if exchange.size == MIB else 0.95


def comparisons(names: Collection[str]) -> Iterator[Comparison]:
    """Return what is compared, given the names of all arms."""
    for exchange in EXCHANGES:
        case = exchange.label
        yield Comparison(case, OURS, (TCP,), least(exchange), label=f"{case}: against tcp", needs_cores=False)
        target = 4.0 if exchange.size == 0 else None
        label = f"{case}: spinning, against tcp"
        yield Comparison(case, SPINNING, (TCP,), target, label=label, needs_cores=False)
        target = 1.0 if exchange.size == 16 * MIB else None
        yield Comparison(case, OURS, (POLLED,), target, label=f"{case}: against polled MPI", needs_cores=False)
        if UCXX in names:
            yield Comparison(case, OURS, (UCXX,), label=f"{case}: against ucxx", needs_cores=False)


def idle_rows(idle: dict[str, float]) -> Iterator[Row]:
    """Return the processor time of a waiting process beside what it may be, in percent of one processor."""
    for name, share in idle.items():
        target = 1.0 if name == OURS else None
        yield computed(f"idle process, {name}", "at most", 100 * share, 100 * _MOST_IDLE, "%", target)


def parts(options: Options) -> PartResults:
    jobs = [job("dask", __file__, [], 2)]
    measurement, idle = measure_with_facts(jobs, "two processes", options.settings, start_timeout_s=120.0)
    yield [*comparisons(idle), *idle_rows(idle)], measurement


if __name__ == "__main__":
    run_claim("Dask's messages take half of TCP's time on one host, and are nowhere slower", parts)
