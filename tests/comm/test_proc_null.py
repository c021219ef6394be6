"""Messages to and from PROC_NULL, as at the edge of a grid; MPI's MPI_PROC_NULL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.sim import Link

from ..load import scaled
from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)


def _every_form(comm: hk.Communicator, backends: list[str]) -> int:
    comm.finalize()
    comm = hk.init(backends=backends, timeout=scaled(50))
    null, other = hk.PROC_NULL, 1 - comm.rank
    kept = np.arange(6.0).reshape(3, 2)
    for backend in [*comm.backends, None]:
        for x in (
            kept.copy(),
            kept.copy()[:, 1],
            np.empty(0),
            kept.astype(np.float32),
        ):  # also one that must be copied
            before = x.copy()
            comm.send(x, null, 3, backend=backend)
            comm.recv(x, null, backend=backend)
            works = [comm.isend(x, null, backend=backend), comm.irecv(x, null, 5, backend=backend)]
            works += comm.batch([hk.Send(x, null), hk.Recv(x, null)], backend=backend)
            assert all(work.done and work.test() and work.exception() is None for work in works)
            hk.wait_all(works)
            assert hk.wait_any(works) == 0 and "PROC_NULL" in repr(works[0])
            out = x.copy()
            comm.sendrecv(x, null, out, null, backend=backend)
            np.testing.assert_array_equal(x, before)
            np.testing.assert_array_equal(out, before)
        # One end only: rank 0 has no neighbour to the left, rank 1 none to the right.
        row, halo = np.full(1000, comm.rank), np.full(1000, -7)
        comm.sendrecv(row, other if comm.rank == 0 else null, halo, other if comm.rank == 1 else null, backend=backend)
        np.testing.assert_array_equal(halo, 0 if comm.rank == 1 else -7)
    neighbours = np.array([null, other])  # as in programs for grids
    comm.send(row, neighbours[0])
    comm.send_object({"a": 1}, null)
    assert comm.recv_object(null) is None and comm.isend_object(1, null).done
    with comm.coalesced():
        comm.send(row, null)
    num_messages = sum(record.op in ("send", "recv") for record in comm.records())
    comm.finalize()
    return num_messages


@pytest.mark.parametrize("backends", [["shm"], ["shm", "mpi"]])
def test_nothing_is_sent_and_nothing_written(backends: list[str]) -> None:
    # Only real messages leave events: on each rank one per backend, and one for no named backend.
    assert hk.spawn(_every_form, 2, backends, timeout=50) == [len(backends) + 1] * 2


def _wrong(comm: hk.Communicator) -> list[str]:
    x = np.ones(4)
    calls: list[Callable[[], Any]] = [
        lambda: comm.send(x, -1),
        lambda: comm.recv("text", hk.PROC_NULL),
        lambda: comm.send(x, hk.PROC_NULL, -1),
        lambda: comm.send(x, hk.PROC_NULL, backend="none"),
        lambda: comm.send(x, hk.PROC_NULL, timeout=0),
        lambda: comm.sendrecv(x, hk.PROC_NULL, x[1:], hk.PROC_NULL),
        lambda: comm.broadcast(x, hk.PROC_NULL),
        lambda: comm.send_object(lambda: x, hk.PROC_NULL),
    ]
    seen = []
    for call in calls:
        try:
            call()
        except hk.HocketError as error:
            seen.append(f"{type(error).__name__} {error}")
        else:
            seen.append("")
    return seen


def test_the_rest_of_a_call_is_checked_all_the_same() -> None:
    (seen,) = hk.spawn(_wrong, 1, timeout=50)
    names = [
        ("InvalidArgument", "-1"), ("InvalidType", "x"), ("InvalidArgument", "tag"), ("BackendUnavailable", "none"),
        ("InvalidArgument", "timeout"), ("InvalidArgument", "overlap"), ("InvalidArgument", "root"),
        ("InvalidType", "function"),
    ]  # fmt: skip
    for text, each in zip(seen, names, strict=True):
        assert_names(text, *each)


def _diffuse(comm: hk.Communicator, rows: np.ndarray, steps: int) -> np.ndarray:
    """The heat equation on a part of the rows, as in programs for mpi4py."""
    mine = np.array_split(rows, comm.size)[comm.rank]
    u = np.zeros((len(mine) + 2, rows.shape[1]))
    u[1:-1] = mine
    up = comm.rank - 1 if comm.rank > 0 else hk.PROC_NULL
    down = comm.rank + 1 if comm.rank < comm.size - 1 else hk.PROC_NULL
    for _ in range(steps):
        comm.sendrecv(u[1], up, u[-1], down)
        comm.sendrecv(u[-2], down, u[0], up)
        u[1:-1] += 0.25 * (u[:-2] - 2 * u[1:-1] + u[2:])
    return u[1:-1]


def test_heat_equation_on_three_ranks_is_that_on_one() -> None:
    rows = np.random.default_rng(1).random((17, 5))
    whole = np.zeros((19, 5))
    whole[1:-1] = rows
    for _ in range(20):
        whole[1:-1] += 0.25 * (whole[:-2] - 2 * whole[1:-1] + whole[2:])
    parts = hk.spawn(_diffuse, 3, rows, 20, timeout=50)
    np.testing.assert_array_equal(np.concatenate(parts), whole[1:-1])


def test_virtual_ranks_have_it_too() -> None:
    def program(comm: hk.Communicator) -> None:
        comm.send(np.ones(8), hk.PROC_NULL)
        comm.irecv(np.ones(8), hk.PROC_NULL).wait()

    assert hk.simulate(program, 4, fabric=Link.of(2.0, 12.5)).seconds == 0.0
