"""The nccl backend where there is no GPU: its lanes over a group of gloo's, on memory that is a device's by name.

What this shows is which operations go to the library, with which arguments, and what happens to all others. That NCCL
itself does them on a GPU it does not show.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hocket as hk
import hocket.memory
from hocket.backends import find_backends, nccl
from hocket.backends._torch import host_tensor
from hocket.errors import BackendUnavailable

from ..naming import Given, assert_names, raises
from .devices import DeviceArray, SharingDriver

pytestmark = pytest.mark.timeout(120)


class NamedDevice(SharingDriver):
    """A device in name only: gloo can access its memory."""

    def _protect(self, mode: int) -> None:
        pass


class GlooAsNccl:
    """A group with the methods of torch's group for NCCL; `is_completed` of its works reports completion."""

    ended: int = 0
    aborted: int = 0

    def __init__(self, group: Any) -> None:
        self._group = group
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._group, name)
        if name in ("size", "rank"):
            return call

        def start(*args: Any) -> Any:
            self.calls.append(name)
            work = call(*args)
            return SimpleNamespace(is_completed=work.get_future().done, wait=work.wait)

        return start

    def _reduce_scatter_base(self, out: Any, x: Any, options: Any) -> Any:
        """Replace gloo's method, whose work cannot be polled."""
        self.calls.append("_reduce_scatter_base")
        summed = x.clone()
        work = self._group.allreduce([summed], options_of_all_reduce(options))

        def wait() -> None:
            work.wait()
            out.copy_(summed.view(self._group.size(), -1)[self._group.rank()])

        return SimpleNamespace(is_completed=work.get_future().done, wait=wait)

    def shutdown(self) -> None:
        GlooAsNccl.ended += 1

    def abort(self) -> None:
        GlooAsNccl.aborted += 1


def options_of_all_reduce(options: Any) -> Any:
    from torch.distributed import AllreduceOptions

    converted = AllreduceOptions()
    converted.reduceOp = options.reduceOp
    return converted


GROUPS: list[GlooAsNccl] = []


def _pretend(rank: int, gpu_of_rank: Callable[[int], str] = str) -> None:
    """Let the backend find a GPU and NCCL in this process."""
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

    def open_group(prefix: str, store: Any, rank: int, size: int, gpu: nccl.Gpu) -> Any:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._threads = 1
        GROUPS.append(GlooAsNccl(ProcessGroupGloo(PrefixStore(prefix, store), rank, size, options)))
        return GROUPS[-1]

    adapter = find_backends()["nccl"]
    adapter.find_obstacle = classmethod(lambda cls: None)  # type: ignore[assignment]
    adapter.description = "pretended"  # type: ignore[assignment]
    module = nccl
    module.own_gpu = lambda: nccl.Gpu(3, gpu_of_rank(rank))  # type: ignore[assignment]
    module.open_group = open_group

    def device_tensor(device: int, address: int, nbytes: int, dtype: str) -> Any:
        assert device == 3
        return host_tensor(address, nbytes, dtype)

    module.device_tensor = device_tensor


def _start(comm: hk.Communicator, *backends: str) -> tuple[hk.Communicator, NamedDevice]:
    """Return a communicator that has nccl, in place of the one of spawn, and the driver of its devices."""
    _pretend(comm.rank)
    comm.finalize()
    driver = NamedDevice()
    hocket.memory.use_driver(driver)
    return hk.init(backends=["shm", *backends, "nccl"], timeout=60), driver


def _operations(comm: hk.Communicator) -> None:
    comm, driver = _start(comm, "gloo")
    assert comm.backends["nccl"] == "pretended"
    rank, size = comm.rank, comm.size
    page = iter(range(0, 40000, 16))

    def put(x: np.ndarray[Any, Any]) -> DeviceArray:
        return DeviceArray(driver, x, next(page))

    def check(name: str, call: Callable[[], Any], out: DeviceArray, expected: Any, backend: str = "nccl") -> None:
        copies = driver.num_to_host, driver.num_to_device
        call()
        record = comm.records()[-1]
        assert (record.op, record.backend) == (name, backend), record
        if backend == "nccl":
            assert (driver.num_to_host, driver.num_to_device) == copies, name
        np.testing.assert_array_equal(out.read(), expected, err_msg=name)

    rng = np.random.default_rng(7)
    for dtype in ("float32", "float64", "int64", "uint8"):
        parts = rng.integers(0, 9, (size, size, 100)).astype(dtype)
        rows = parts[:, 0]
        for op, expected in [("sum", rows.sum(0, dtype)), ("prod", rows.prod(0, dtype))]:
            x = put(rows[rank])
            check("all_reduce", lambda: comm.all_reduce(x, op, backend="nccl"), x, expected)  # noqa: B023
        x = put(rows[rank])
        check("reduce", lambda: comm.reduce(x, 0, backend="nccl"), x, rows.sum(0, dtype) if rank == 0 else rows[rank])  # noqa: B023
        out, x = put(np.zeros(100, dtype)), put(parts[rank])
        check("reduce_scatter", lambda: comm.reduce_scatter(out, x, backend="nccl"), out, parts.sum(0, dtype)[rank])  # noqa: B023
    x = put(np.full(50, rank, np.int32))
    check("all_reduce", lambda: comm.all_reduce(x, "max", backend="nccl"), x, np.full(50, size - 1))
    for _ in range(2):  # divided after the sum; NCCL divides before
        x = put(np.full(5000, float(rank)))
        check("all_reduce", lambda: comm.all_reduce(x, "avg"), x, np.full(5000, (size - 1) / 2), "shm")  # noqa: B023

    rows = rng.random((size, 60)) > 0.5
    x = put(rows[rank])
    check("broadcast", lambda: comm.broadcast(x, 1, backend="nccl"), x, rows[1])
    out, x = put(np.zeros((size, 60), bool)), put(rows[rank])
    check("all_gather", lambda: comm.all_gather(out, x, backend="nccl"), out, rows)
    whole = put(np.where(np.arange(size)[:, None] == rank, rows, False))
    own = whole.view(60 * rank, 60)
    check("all_gather", lambda: comm.all_gather(whole, own, backend="nccl"), whole, rows)
    square = rng.random((size, size, 30))
    out, x = put(np.zeros((size, 30))), put(square[rank])
    check("all_to_all", lambda: comm.all_to_all(out, x, backend="nccl"), out, square[:, rank])
    if rank == 1:
        out, x = put(np.zeros((size, 60), bool)), put(rows[rank])
        check("gather", lambda: comm.gather(out, x, 1, backend="nccl"), out, rows)
        out, x = put(np.zeros(30)), put(square[0])
        check("scatter", lambda: comm.scatter(out, x, 1, backend="nccl"), out, square[0, 1])
    else:
        x = put(rows[rank])
        check("gather", lambda: comm.gather(None, x, 1, backend="nccl"), x, rows[rank])
        out = put(np.zeros(30))
        check("scatter", lambda: comm.scatter(out, None, 1, backend="nccl"), out, square[0, rank])
    counts = [5 * each for each in range(size)]  # rank 0 has nothing
    ragged = [np.full(count, each + 1.0) for each, count in enumerate(counts)]
    joined = np.concatenate(ragged)
    out, x = put(np.zeros(sum(counts))), put(ragged[rank])
    check("all_gatherv", lambda: comm.all_gatherv(out, x, counts, backend="nccl"), out, joined)
    out, x = put(np.zeros(size * counts[rank])), put(joined)
    check("all_to_allv", lambda: comm.all_to_allv(out, x, [counts[rank]] * size, counts, backend="nccl"), out,
          np.tile(ragged[rank], size))  # fmt: skip
    if rank == 0:
        out, x = put(np.zeros(sum(counts))), put(ragged[0])
        check("gatherv", lambda: comm.gatherv(out, x, counts, 0, backend="nccl"), out, joined)
        out, x = put(np.zeros(counts[0])), put(joined)
        check("scatterv", lambda: comm.scatterv(out, x, counts, 0, backend="nccl"), out, ragged[0])
    else:
        x = put(ragged[rank])
        check("gatherv", lambda: comm.gatherv(None, x, counts, 0, backend="nccl"), x, ragged[rank])
        out = put(np.zeros(counts[rank]))
        check("scatterv", lambda: comm.scatterv(out, None, counts, 0, backend="nccl"), out, ragged[rank])

    # No library is named: nccl is used, and shared memory for the operations that nccl refuses.
    x = put(np.full(2000, 1.0))
    check("all_reduce", lambda: comm.all_reduce(x), x, np.full(2000, size), "nccl")
    x = put(np.full(20, rank, np.uint16))
    check("all_reduce", lambda: comm.all_reduce(x), x, np.full(20, 1), "shm")
    x = put(np.full(20, float(rank)))
    check("all_reduce", lambda: comm.all_reduce(x, "max"), x, np.full(20, 1), "shm")
    check("scan", lambda: comm.scan(x), x, np.full(20, 1.0 + rank), "shm")
    work = comm.all_reduce(put(np.full(20, 1.0)), async_op=True)
    work.wait()
    assert comm.records()[-1].backend == "nccl"

    # Also if only nccl is named.
    with raises(hk.UnsupportedDtype, names=("nccl", "all_reduce(sum)", "32 bytes", "device")):
        comm.all_reduce(np.ones(4), backend="nccl")
    with raises(hk.UnsupportedDtype, names=("nccl", "barrier")):
        comm.barrier(backend="nccl")
    with raises(hk.UnsupportedDtype, names=("nccl", "all_reduce(sum)", "uint64")):
        comm.all_reduce(put(np.ones(4, np.uint64)), backend="nccl")
    with raises(hk.UnsupportedDtype, names=("nccl", "send")):
        comm.send(put(np.ones(4)), 1 - rank, backend="nccl")
    assert_names(comm.explain("all_reduce", 8).refused["nccl"], "device")

    sub = comm.dup()
    x = put(np.full(20, 1.0))
    sub.all_reduce(x, backend="nccl")
    np.testing.assert_array_equal(x.read(), np.full(20, size))
    sub.finalize()
    assert GlooAsNccl.ended == 1 and len(GROUPS) == 2
    comm.finalize()
    assert GlooAsNccl.ended == 2 and GlooAsNccl.aborted == 0


def test_operations() -> None:
    hk.spawn(_operations, 2, timeout=110)


def _one_on_the_host(comm: hk.Communicator) -> None:
    comm, driver = _start(comm)
    x = np.ones(2000)
    with raises(hk.CollectiveMismatch, names=("rank 0", "nccl", "rank 1", "shm")):
        comm.all_reduce(x if comm.rank else DeviceArray(driver, x))


def test_arrays_of_one_rank_on_the_host() -> None:
    hk.spawn(_one_on_the_host, 2, timeout=110)


def _stuck(comm: hk.Communicator) -> None:
    world, driver = _start(comm)
    GROUPS[0].allreduce = lambda *args: SimpleNamespace(is_completed=lambda: False)  # type: ignore[attr-defined]
    other = world.dup()
    with pytest.raises((hk.CommTimeout, hk.Aborted)):  # the later rank is notified by the other
        world.all_reduce(DeviceArray(driver, np.ones(2000)), timeout=0.5)
    assert GlooAsNccl.aborted == 1 and GlooAsNccl.ended == 0
    other.barrier()
    with pytest.raises(hk.Aborted):
        world.barrier()
    world.finalize()
    assert GlooAsNccl.aborted == 1


def test_kernels_that_were_given_up_are_ended() -> None:
    hk.spawn(_stuck, 2, timeout=110)


def _one_gpu_for_two(comm: hk.Communicator) -> None:
    rank = comm.rank
    comm.finalize()
    _pretend(rank, lambda rank: "GPU 7 of here")
    with raises(
        BackendUnavailable, names=("ranks 0 and 1", Given("GPU 7 of here"), "torch.cuda.set_device(local_rank)")
    ):
        hk.init(backends=["shm", "nccl"], timeout=60)


def test_one_gpu_for_two_ranks() -> None:
    hk.spawn(_one_gpu_for_two, 2, timeout=110)


def test_without_nccl() -> None:
    """The build of torch may have NCCL, or not."""
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(BackendUnavailable, match=r"'nccl'.*(NCCL|CUDA)"):
        hk.init(backends=["shm", "nccl"])


@pytest.mark.parametrize(
    ("kind", "dtype", "reduction", "reason"),
    [
        ("all_reduce", "float32", "sum", None),
        ("all_reduce", "bfloat16", "prod", None),
        ("reduce_scatter", "int32", "min", None),
        ("all_reduce", "float32", "min", "min"),
        ("all_reduce", "float32", "avg", "divides"),
        ("reduce", "bool", "sum", "bool"),
        ("all_reduce", "int32", "bor", "bor"),
        ("broadcast", "complex128", None, None),
        ("scan", "float32", "sum", "scan"),
        ("reduce_scatterv", "float32", "sum", "reduce_scatterv"),
        ("barrier", "uint8", None, "barrier"),
    ],
)
def test_what_it_refuses(kind: str, dtype: str, reduction: str | None, reason: str | None) -> None:
    lane = nccl.NcclCollectiveLane(SimpleNamespace(size=lambda: 2, rank=lambda: 0), nccl.Gpu(3, "one"))
    refusal = lane.refuses(kind, dtype, reduction)
    assert refusal is None if reason is None else refusal is not None and reason in refusal
