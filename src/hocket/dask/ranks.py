"""``hocket run --dask``: the ranks of a job are one Dask cluster.

Rank 0 has the scheduler, in a thread, and runs the script; the other ranks are workers. On several hosts the ranks
start MPI if they can, so that it carries frames between the workers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import dask
from distributed import Scheduler, Worker
from distributed.utils import get_ip

from hocket.boot.runner import run_program
from hocket.errors import CommTimeout
from hocket.session import init

_START_S = 60.0
_END_S = 10.0


def main(arguments: Sequence[str]) -> None:
    """Run one rank.

    Args:
        arguments: ``["script.py", *args]`` or ``["-m", "module", *args]``.
    """
    if "DASK_LOGGING__DISTRIBUTED" not in os.environ:
        logging.getLogger("distributed").setLevel(logging.WARNING)  # as LocalCluster does
    rank = int(os.environ["RANK"])
    num_ranks, num_local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    is_one_host = num_ranks == num_local
    host = "127.0.0.1" if is_one_host else get_ip(os.environ["MASTER_ADDR"])  # type: ignore[no-untyped-call]
    comm = init(backends="shm" if is_one_host else None, timeout=_START_S)
    if rank == 0:
        with _running_scheduler(host) as address:
            comm.broadcast_object(address, 0)
            comm.finalize()
            os.environ["DASK_SCHEDULER_ADDRESS"] = address  # also for what the script starts
            dask.config.set(scheduler_address=address)  # a Client() without arguments finds it
            run_program(list(arguments))
    else:
        address = comm.broadcast_object(None, 0)
        comm.finalize()  # MPI stays until the process ends
        num_workers = num_local - (os.environ["GROUP_RANK"] == "0")
        num_threads = max(1, len(os.sched_getaffinity(0)) // num_workers)
        asyncio.run(_work(address, host, rank, num_threads))


@contextmanager
def _running_scheduler(host: str) -> Iterator[str]:
    """Run a scheduler in a thread, and yield its address; at the end it tells all workers to end."""
    loop = asyncio.new_event_loop()
    started: list[Scheduler] = []
    failed: list[BaseException] = []
    is_decided = threading.Event()

    async def serve() -> None:
        try:
            scheduler = await Scheduler(host=host, port=0, protocol="hocket://", dashboard_address=":0")
            started.append(scheduler)
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            is_decided.set()
        await scheduler.finished()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="dask-scheduler", daemon=True)
    thread.start()
    if not is_decided.wait(_START_S):
        raise CommTimeout(f"Dask's scheduler has not started within {_START_S:g} s")
    if failed:
        raise failed[0]
    try:
        yield str(started[0].address)
    finally:
        closing = asyncio.run_coroutine_threadsafe(_close(started[0]), loop)
        try:
            closing.result(_END_S)
        except TimeoutError:
            print(f"hocket: Dask's scheduler has not ended within {_END_S:g} s", file=sys.stderr)
        thread.join(_END_S)


async def _close(scheduler: Scheduler) -> None:
    """End the workers, and then the scheduler: clients in workers would try to reach it again."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S / 2):
            for each in list(scheduler.workers):
                scheduler.worker_send(each, {"op": "close", "reason": "the script has ended"})
            while scheduler.workers:
                await asyncio.sleep(0.01)
    await scheduler.close(reason="the script has ended")


async def _work(address: str, host: str, rank: int, num_threads: int) -> None:
    worker = Worker(address, host=host, name=rank, nthreads=num_threads, death_timeout=_START_S, dashboard=False)
    await worker
    await worker.finished()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1:])
