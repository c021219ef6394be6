"""Peers that are killed or stopped, many connections, many messages: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")

from distributed.comm import CommClosedError, connect  # noqa: E402
from distributed.protocol import to_serialize  # noqa: E402

from ..load import scaled  # noqa: E402
from ..naming import raises  # noqa: E402
from ..waiting import until  # noqa: E402
from .connections import both_ends, run  # noqa: E402
from .peers import (  # noqa: E402
    MIB,
    PATHS,
    Peer,
    Peers,
    children,
    connect_by,
    descriptors_of,
    exchange,
    peers,
    read_until_closed,
    resident_nbytes,
    seconds_to_notice,
    send_until_closed,
    shared_mappings_of,
)

pytestmark = pytest.mark.timeout(120)
SECONDS = scaled(60)
NOTICED_S = scaled(2)
"""On this machine it takes some milliseconds; here it must only be far below every timeout."""


@pytest.fixture(scope="module")
def start() -> Iterator[Peers]:
    with peers() as start:
        yield start


@pytest.fixture
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A path that connections go; "tcp", the one between hosts, by an end that reaches no local socket."""
    if request.param == "tcp":
        monkeypatch.setattr("hocket.dask.moving.connect_locally", lambda _: None)
    return str(request.param)


@pytest.fixture
def low_water() -> Iterator[None]:
    with dask.config.set({"distributed.comm.hocket.high-water": "4 MiB"}):
        yield


def arrays(count: int) -> list[np.ndarray]:
    """Arrays of 1 MiB that differ."""
    return [np.arange(number, number + MIB // 8) for number in range(count)]


@pytest.mark.parametrize("path", PATHS, indirect=True)
@pytest.mark.parametrize("state", ["idle", "busy", "held"])
@pytest.mark.usefixtures("low_water")
def test_a_killed_peer_is_noticed(start: Peers, path: str, state: str) -> None:
    """By an end that waits for a message, in the midst of large ones, and by a writer that the peer holds up."""

    async def program() -> float:
        return await seconds_to_notice(path, start.start(), state)

    took_s = run(program)
    print(f"noticed after {1e3 * took_s:.1f} ms")
    assert took_s < NOTICED_S


def test_a_peer_that_is_killed_while_it_is_connected_to(start: Peers) -> None:
    """In each part of the handshake: whoever connects gets an error in time, or a connection that is closed."""

    async def program() -> None:
        for delay_s in (0, 0.0003, 0.0006, 0.001, 0.0015, 0.002, 0.003, 0.005):
            peer = start.start()
            connecting = asyncio.ensure_future(connect(peer.address, timeout=0.2))
            await asyncio.sleep(delay_s)
            peer.kill()
            await asyncio.wait([connecting], timeout=scaled(10))
            assert connecting.done()
            if connecting.exception() is None:
                with raises(CommClosedError):
                    await connecting.result().read()
            else:
                assert isinstance(connecting.exception(), OSError)

    run(program)  # the first one loads what is loaded at its first use
    gc.collect()
    before = Counter(descriptors_of())
    run(program)
    gc.collect()
    assert Counter(descriptors_of()) <= before


@pytest.mark.parametrize("path", PATHS, indirect=True)
def test_other_connections_outlive_a_killed_peer(start: Peers, path: str) -> None:
    async def program() -> None:
        doomed, other = start.start(), start.start()
        comms = [await connect_by(path, each.address) for each in (doomed, other)]
        x = arrays(1)[0]
        for each in comms:
            await exchange(each, x)
        await comms[0].write({"x": to_serialize(x)})
        doomed.kill()
        for _ in range(20):
            await exchange(comms[1], x)
        with raises(CommClosedError):
            while True:
                await comms[0].read()
        await comms[1].close()

    run(program)


@pytest.mark.parametrize("path", ["memory", "tcp"], indirect=True)
@pytest.mark.usefixtures("low_water")
def test_a_stopped_peer_holds_writers_up_and_gets_everything(start: Peers, path: str) -> None:
    async def program() -> None:
        peer = start.start()
        comm = await connect_by(path, peer.address)
        sent = arrays(60)
        await exchange(comm, sent[0])
        num_written = 0

        async def write() -> None:
            nonlocal num_written
            for each in sent:
                await comm.write({"x": to_serialize(each)})
                num_written += 1

        await peer.stop()
        writing = asyncio.ensure_future(write())
        reading = asyncio.ensure_future(_read(comm, sent))
        before = -1
        while before != num_written or num_written < 4:
            before = num_written
            await asyncio.sleep(0.2)
        # The mark is 4 MiB; over TCP the kernel's buffers have some more.
        assert 4 <= num_written <= (6 if path == "memory" else 40)
        assert not writing.done() and not reading.done()
        peer.go_on()
        await asyncio.gather(writing, reading)
        await exchange(comm, sent[0])
        await comm.close()

    run(program)


async def _read(comm: Any, wanted: list[np.ndarray]) -> None:
    """Read these arrays, in their order."""
    for each in wanted:
        np.testing.assert_array_equal((await comm.read())["x"], each)


@pytest.mark.parametrize("path", PATHS, indirect=True)
def test_a_peer_that_stands_still_now_and_then_loses_nothing(start: Peers, path: str) -> None:
    async def program() -> None:
        peer = start.start()
        comm = await connect_by(path, peer.address)
        sent = arrays(10) * 20
        reading = asyncio.ensure_future(_read(comm, sent))

        async def write() -> None:
            for number, each in enumerate(sent):
                if number % 50 == 25:
                    await peer.stop()
                    asyncio.get_running_loop().call_later(0.1, peer.go_on)
                await comm.write({"x": to_serialize(each)})

        await asyncio.gather(write(), reading)
        await comm.close()

    run(program)


def test_a_peer_that_stands_still_longer_than_the_timeout_loses_nothing(start: Peers) -> None:
    """In shared memory: the writer goes on after the timeout, and the messages wait for the peer."""

    async def program() -> None:
        options = {"distributed.comm.hocket.high-water": "1 MiB", "distributed.comm.timeouts.tcp": "300 ms"}
        with dask.config.set(options):
            peer = start.start()
            comm = await connect_by("memory", peer.address)
            sent = arrays(5)
            await exchange(comm, sent[0])
            await peer.stop()
            begin_s = time.monotonic()
            for each in sent:
                await comm.write({"x": to_serialize(each)})
            assert time.monotonic() - begin_s > 0.3
            peer.go_on()
            await _read(comm, sent)
            await comm.close()

    run(program)


@pytest.mark.parametrize("path", ["tcp"], indirect=True)
def test_between_hosts_a_peer_that_stands_still_longer_than_the_timeout_counts_as_gone(start: Peers, path: str) -> None:
    """As over Dask's TCP: the kernel cannot tell it from a host that does not answer."""

    async def program() -> None:
        with dask.config.set({"distributed.comm.timeouts.tcp": "1 s"}):
            peer = start.start()
            comm = await connect_by(path, peer.address)
            x = arrays(1)[0]
            await exchange(comm, x)
            await peer.stop()
            tasks = [asyncio.ensure_future(each) for each in (send_until_closed(comm, x), read_until_closed(comm))]
            await asyncio.wait(tasks, timeout=scaled(15))
            assert all(each.done() for each in tasks) and comm.closed()

    run(program)


def test_a_peer_that_stands_still_is_connected_to_when_it_goes_on(start: Peers) -> None:
    async def program() -> None:
        peer = start.start()
        await peer.stop()
        connecting = asyncio.ensure_future(connect(peer.address))
        await asyncio.sleep(0.3)
        assert not connecting.done()
        peer.go_on()
        comm = await connecting
        await exchange(comm, arrays(1)[0])
        assert comm.extra_info["path"] == "memory"
        await comm.close()

    run(program)


class Cycles:
    """Connections that are made, used and ended in turn: closed, aborted, by the other end, by its death.

    Args:
        start: of peers that die.
        survivor: the peer that lives on.
    """

    def __init__(self, start: Peers, survivor: Peer) -> None:
        self._start, self._survivor = start, survivor
        self._arrays = [np.arange(MIB // 8), np.arange(80 << 7)]
        self._kept: list[Any] = []  # arrays live longer than the connection by which they came
        self.nbytes_shared = 0

    async def go(self, numbers: range) -> None:
        """Go through some of them."""
        for number in numbers:
            if number % 4 == 3:
                await self._within_the_process(number)
            else:
                is_doomed = number % 8 == 2
                await self._with_a_peer(number % 4, self._start.start() if is_doomed else self._survivor, is_doomed)
        self._kept.clear()

    async def _with_a_peer(self, how: int, peer: Peer, is_doomed: bool) -> None:
        comm = await connect(peer.address)
        for each in self._arrays * 2:
            await comm.write({"x": to_serialize(each)})
            self._kept = [(await comm.read())["x"], *self._kept[:3]]
            assert self._kept[0].size == each.size
        self.nbytes_shared += comm.extra_info["nbytes_shared"]
        if how == 0:
            await comm.close()
            return
        await comm.write({"x": to_serialize(self._arrays[0])})  # it is on its way when the connection ends
        if is_doomed:
            peer.kill()
            with raises(CommClosedError):
                while True:
                    self._kept = [(await comm.read())["x"], *self._kept[:3]]
        comm.abort()

    async def _within_the_process(self, number: int) -> None:
        async with both_ends() as (there, here):
            for each in self._arrays * 2:
                await there.write({"x": to_serialize(each)})
                await here.write({"x": to_serialize((await here.read())["x"])})
                self._kept = [(await there.read())["x"], *self._kept[:3]]
            if number % 8 == 3:
                await there.close()
                with raises(CommClosedError):
                    await here.read()


def test_200_connections_leave_nothing_behind() -> None:
    """No file descriptor, process or shared memory, neither in this process nor in the peer that lives on."""
    with peers() as start:
        survivor = start.start()
        forks = Path(f"/proc/{start.pid}/task/{start.pid}/children")
        cycles = Cycles(start, survivor)
        run(lambda: cycles.go(range(8)))
        gc.collect()
        pids = ("self", survivor.pid)
        descriptors = [Counter(descriptors_of(each)) for each in pids]
        # Of other tests in this process; the peer may drop those of the last connection yet.
        mappings = [set(shared_mappings_of("self")), set()]
        before = children(), _of_hocket_in_dev_shm()
        for first in range(0, 200, 20):  # also event loops come and go
            run(lambda first=first: cycles.go(range(first, first + 20)))
        gc.collect()
        assert cycles.nbytes_shared > 50 * MIB
        # Threads may be about to make a segment; and the peer is to notice the end of the last connection.
        for number, pid in enumerate(pids):
            until(lambda pid=pid, number=number: Counter(descriptors_of(pid)) <= descriptors[number], 5)
            until(lambda pid=pid, number=number: set(shared_mappings_of(pid)) <= mappings[number], 5)
        assert (children(), _of_hocket_in_dev_shm()) == before
        until(lambda: forks.read_text().split() == [str(survivor.pid)], 5)


@pytest.mark.parametrize("how", ["close", "abort", "kill"])
def test_a_closed_connection_has_no_segments(start: Peers, how: str) -> None:
    """Also while somebody has its object: Dask keeps closed workers and schedulers, with all that they had."""

    async def program() -> Any:
        peer = start.start()
        comm = await connect_by("memory", peer.address)
        for _ in range(3):
            await exchange(comm, arrays(1)[0])
        if how == "close":
            await comm.close()
        elif how == "abort":
            comm.abort()
        else:
            peer.kill()
            assert await read_until_closed(comm) == 0
        return comm

    gc.collect()
    before = set(shared_mappings_of()), Counter(descriptors_of())
    comm = run(program)
    gc.collect()
    assert comm.closed() and comm.extra_info["nbytes_shared"] and comm.extra_info["nbytes_mapped"]
    assert set(shared_mappings_of()) <= before[0]
    assert Counter(descriptors_of()) <= before[1]


def _of_hocket_in_dev_shm() -> set[str]:
    """Files of hocket, but not of its recorders, which other programs on this machine may have now."""
    return {each for each in os.listdir("/dev/shm") if "hocket" in each and not each.startswith("hocket-recorder-")}


@pytest.mark.parametrize("path", ["memory", "tcp"], indirect=True)
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
def test_memory_is_flat(start: Peers, path: str, count: int) -> None:
    """After a tenth of the messages, and after all of them, both ends have as much."""

    async def program() -> None:
        peer = start.start()
        comm = await connect_by(path, peer.address)
        sent = arrays(8)
        found = []
        for number in range(count):
            await comm.write({"x": to_serialize(sent[number % 8])})
            if number >= 4:  # some are on their way at any time
                np.testing.assert_array_equal((await comm.read())["x"], sent[(number - 4) % 8])
            if number + 1 in (count // 10, count):
                found.append([resident_nbytes(each) for each in ("self", peer.pid)])
        growth = [after - before for before, after in zip(*found, strict=True)]
        print("MiB more:", *(each / MIB for each in growth))
        assert all(abs(each) < 32 * MIB for each in growth)
        await comm.close()

    run(program, 100)


@pytest.fixture
def cluster() -> Iterator[distributed.LocalCluster]:
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with (
        dask.config.set({"distributed.scheduler.work-stealing": False}),  # tasks stay where the test puts them
        distributed.LocalCluster(protocol="hocket://", **options) as cluster,
    ):
        yield cluster


def _runs(folder: Path) -> Counter[int]:
    """How often each task of `_start_tasks` has run."""
    return Counter(int(each.name.partition("-")[0]) for each in folder.iterdir())


def _start_tasks(client: distributed.Client, folder: Path) -> list[distributed.Future]:
    def task(number: int, folder: str) -> np.ndarray:  # workers cannot import this module
        import tempfile

        tempfile.mkstemp(prefix=f"{number}-", dir=folder)
        return np.full(1 << 16, number)

    # Each worker has a half of them, and may have those of the other one.
    shares = zip(client.scheduler_info()["workers"], (range(8), range(8, 16)), strict=True)
    options = {"folder": str(folder), "pure": False, "allow_other_workers": True}
    futures = [future for worker, share in shares for future in client.map(task, share, workers=[worker], **options)]
    distributed.wait(futures, SECONDS)
    return futures


def test_a_killed_worker_is_noticed_and_only_its_tasks_run_again(
    cluster: distributed.LocalCluster, tmp_path: Path
) -> None:
    with distributed.Client(cluster) as client:
        futures = _start_tasks(client, tmp_path)
        pids = client.run(os.getpid)
        doomed, other = pids
        has = client.who_has(futures)
        lost = [number for number, each in enumerate(futures) if set(has[each.key]) == {doomed}]
        assert 0 < len(lost) < 16

        def long_task(seconds: float) -> int:
            import os
            import time

            time.sleep(seconds)
            return os.getpid()

        going_on = client.submit(long_task, 0.5, workers=[other])
        os.kill(pids[doomed], signal.SIGKILL)
        begin_s = time.monotonic()
        until(lambda: doomed not in cluster.scheduler.workers)
        took_s = time.monotonic() - begin_s
        print(f"noticed after at most {1e3 * took_s:.1f} ms")  # it looks every 20 ms
        assert took_s < NOTICED_S
        total = client.submit(lambda parts: int(np.sum(parts)), futures)
        assert total.result(SECONDS) == sum(range(16)) << 16
        assert going_on.result(SECONDS) == pids[other]
        assert _runs(tmp_path) == {number: 2 if number in lost else 1 for number in range(16)}
        assert pids[doomed] not in client.run(os.getpid).values()


def test_a_worker_that_stands_still_loses_nothing(cluster: distributed.LocalCluster, tmp_path: Path) -> None:
    """A worker waits for the data of another one that is stopped; no task runs again."""
    with distributed.Client(cluster) as client:
        futures = _start_tasks(client, tmp_path)
        pids = client.run(os.getpid)
        stopped, other = pids
        os.kill(pids[stopped], signal.SIGSTOP)
        total = client.submit(lambda parts: int(np.sum(parts)), futures, workers=[other])
        time.sleep(1)
        assert not total.done()
        os.kill(pids[stopped], signal.SIGCONT)
        assert total.result(SECONDS) == sum(range(16)) << 16
        assert client.run(os.getpid) == pids
        assert _runs(tmp_path) == dict.fromkeys(range(16), 1)
