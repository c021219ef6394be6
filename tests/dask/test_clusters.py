"""Clusters of Dask over the protocol."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
da = pytest.importorskip("dask.array")

from ..load import scaled  # noqa: E402

SECONDS = scaled(60)


def paths_of(dask_worker: distributed.Worker) -> set[str]:
    """Return the paths of the connections that a worker has."""
    found = set()
    for comms in (*dask_worker.rpc.available.values(), *dask_worker.rpc.occupied.values()):
        found |= {comm.extra_info.get("path", "") for comm in comms}
    return found


@pytest.mark.parametrize("processes", [True, False])
def test_a_sum_with_its_transpose(processes: bool) -> None:
    with (
        distributed.LocalCluster(
            protocol="hocket://", n_workers=2, threads_per_worker=1, processes=processes, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert cluster.scheduler_address.startswith("hocket://")
        x = da.random.default_rng(1).standard_normal((800, 800), chunks=(200, 200))
        x = client.persist(x)
        found = client.compute(x + x.T).result(SECONDS)
        wanted = client.compute(x).result(SECONDS)
        np.testing.assert_array_equal(found, wanted + wanted.T)
        paths = set().union(*client.run(paths_of).values())
        assert ("memory" if processes else "process") in paths and not paths & {"tcp", "plain tcp", ""}


def test_a_killed_worker_is_replaced_and_its_tasks_run_again() -> None:
    with (
        distributed.LocalCluster(
            protocol="mpi://", n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        futures = client.map(lambda each: each**2, range(20), pure=False)
        distributed.wait(futures, SECONDS)
        victim = next(iter(client.run(os.getpid).values()))
        os.kill(victim, signal.SIGKILL)
        assert client.submit(sum, futures).result(SECONDS) == sum(each**2 for each in range(20))
