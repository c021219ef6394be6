"""Arrays on a GPU that ranks share: by handles where that goes, else by the host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import hocket as hk

from ..memory import on_device
from ..naming import raises
from . import gpu_arrays
from .gpu_arrays import LIBRARIES

pytestmark = pytest.mark.timeout(120)
for each in (gpu_arrays, on_device):  # ranks cannot import what lies among the tests
    cloudpickle.register_pickle_by_value(each)
TYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
BY_THE_HOST = {"all_to_allv"}  # of which only two ranks know where a block lies


def _collectives(comm: hk.Communicator, library: str) -> dict[str, set[bool]]:
    arrays = LIBRARIES[library]()
    for _ in range(2):  # the first operations show that memory can be opened
        comm.all_reduce(arrays.put(np.ones(3000)))
    seen: dict[str, set[bool]] = {}

    def watch(name: str, call: Callable[[], object]) -> None:
        call()
        seen.setdefault(name, set()).add(comm.records()[-1].in_place)

    for dtype in TYPES:
        on_device.check_collectives(comm, arrays, 4099, dtype, watch)
    on_device.check_collectives(comm, arrays, 1_000_003, "float32", watch)
    on_device.check_collectives(comm, arrays, 3, "float64")  # of which the host's way is the faster one
    return seen


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("size", [2, 3])
def test_collectives(library: str, size: int) -> None:
    for seen in hk.spawn(_collectives, size, library, timeout=110):
        assert seen == {name: {name not in BY_THE_HOST} for name in seen}


def _more_types(comm: hk.Communicator) -> None:
    import torch

    x = torch.full((5000,), comm.rank + 0.5, dtype=torch.bfloat16, device="cuda")
    for expected in (2.0, 4.0):
        comm.all_reduce(x)
        assert x.eq(expected).all()
    flags = torch.arange(5000, device="cuda") % 2 == comm.rank
    comm.all_reduce(flags, "lor")
    assert flags.all()
    z = torch.full((5000,), 1 + 2j, device="cuda")
    comm.all_reduce(z)
    assert z.eq(2 + 4j).all()


def test_more_types() -> None:
    hk.spawn(_more_types, 2, timeout=100)


def _other_ways(comm: hk.Communicator) -> None:
    """Messages, several arrays at once, asynchronous and prepared operations, and what is not contiguous."""
    import torch

    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (10, 100_000):
        x, out = torch.full((count,), float(rank), device="cuda"), torch.zeros(count, device="cuda")
        comm.sendrecv(x, right, out, left)
        assert out.eq(left).all()
        receive = comm.irecv(out, right)
        comm.send(x, left)
        receive.wait()
        assert out.eq(right).all()
        many = [torch.full((count,), float(each), device="cuda") for each in range(5)]
        comm.all_reduce_coalesced(many)
        assert all(array.eq(each * size).all() for each, array in enumerate(many))
        works = [comm.all_reduce(x, async_op=True) for _ in range(4)]
        for work in reversed(works):
            work.wait()
        assert x.eq(sum(range(size)) * size**3).all()
        prepared = comm.prepare("all_reduce", x, "avg")
        for turn in range(3):
            x.fill_(rank + turn)
            prepared()
            assert x.eq((size - 1) / 2 + turn).all()
        with raises(hk.InvalidType, names=("x", "x.contiguous()")):
            comm.all_reduce(torch.zeros((count, 4), device="cuda").t())
    given = np.full(5000, float(rank)) if rank == 0 else torch.full((5000,), float(rank), dtype=torch.float64).cuda()
    comm.all_reduce(given)
    assert float(given[17]) == sum(range(size))


def test_other_ways() -> None:
    hk.spawn(_other_ways, 3, timeout=100)


def _streams(comm: hk.Communicator) -> None:
    """What another stream is still computing is waited for; and what comes next on any stream sees the result."""
    import cupy
    import torch

    streams = [torch.cuda.Stream() for _ in range(3)]
    x = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    for turn in range(30):
        with torch.cuda.stream(streams[turn % 3]):
            torch.cuda._sleep(20_000_000)
            x.fill_(comm.rank + turn)
            if turn % 2:
                comm.all_reduce(x)
            else:
                comm.all_reduce(x, async_op=True).wait()
        with torch.cuda.stream(streams[(turn + 1) % 3]):
            y = x.clone()
        streams[(turn + 1) % 3].synchronize()
        assert y.eq(2 * turn + 1).all(), turn
    stream = cupy.cuda.Stream(non_blocking=True)
    for turn in range(10):
        with stream:
            big = cupy.random.random((2000, 2000))
            for _ in range(5):
                big = big @ big
            z = cupy.full(5000, float(comm.rank + turn)) + 0 * big[0, 0] * 0
            z = cupy.where(cupy.isnan(z), comm.rank + turn, z)
            comm.all_reduce(z)
        assert (z.get() == 2 * turn + 1).all()


def test_streams() -> None:
    hk.spawn(_streams, 2, timeout=100)


def _freed_and_given_out_again(comm: hk.Communicator) -> list[bool]:
    """The same address again and again, of allocations of all sizes."""
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.memory._malloc)  # no pool: cudaMalloc and cudaFree each time
    in_place = []
    addresses = set()
    for turn in range(200):
        x = cupy.full(2000 + 300_000 * (turn % 3), float(comm.rank + turn))
        addresses.add(x.data.ptr)
        comm.all_reduce(x)
        assert (x.get() == 2 * turn + 1).all(), turn
        in_place.append(comm.records()[-1].in_place)
        del x
    assert len(addresses) < 100
    return in_place


def test_freed_and_given_out_again() -> None:
    for in_place in hk.spawn(_freed_and_given_out_again, 2, timeout=100):
        assert sum(in_place) > 190


def _pools(comm: hk.Communicator) -> None:
    """Memory of which CUDA gives no handles of this kind: it goes by the host."""
    import cupy
    import torch

    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    for turn in range(5):
        x = cupy.full(5000, float(comm.rank + turn))
        comm.all_reduce(x)
        assert (x.get() == 2 * turn + 1).all()
        assert not comm.records()[-1].in_place
        y = torch.full((50_000_000,), float(comm.rank + turn), device="cuda")  # in segments mapped piece by piece
        comm.all_reduce(y)
        assert y.eq(2 * turn + 1).all()
        assert not comm.records()[-1].in_place
    cupy.cuda.set_allocator(cupy.cuda.malloc_managed)
    z = cupy.full(5000, float(comm.rank))
    comm.all_reduce(z)
    assert (z.get() == 1).all()
    pinned = torch.full((5000,), float(comm.rank)).pin_memory()
    comm.all_reduce(pinned)
    assert pinned.eq(1).all()


def test_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    hk.spawn(_pools, 2, timeout=100)


def _no_leaks(comm: hk.Communicator) -> tuple[int, int]:
    import torch

    def one(turn: int) -> None:
        x = torch.full((1000 + turn % 7 * 50_000,), 1.0, device="cuda")
        comm.all_reduce(x)
        assert x[5].item() == 2.0

    for turn in range(200):
        one(turn)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for turn in range(5000):
        one(turn)
    comm.barrier()
    return before, torch.cuda.mem_get_info()[0]


def test_no_leaks() -> None:
    for before, after in hk.spawn(_no_leaks, 2, timeout=100):
        assert after > before - (64 << 20)


def _dying(comm: hk.Communicator, folder: Path) -> None:
    import torch

    x = torch.full((10_000_000,), 1.0, device="cuda")
    for _ in range(2):
        comm.all_reduce(x)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(hk.PeerFailure) as raised:
        comm.all_reduce(x)
    assert raised.value.ranks == (1,) and time.monotonic() - begun < 10
    rest = comm.shrink()
    y = torch.full((5000,), 2.0, device="cuda")
    for _ in range(2):
        rest.all_reduce(y)
    assert y.eq(8.0).all() and rest.records()[-1].in_place
    (folder / f"went-on-{comm.rank}").touch()


def test_a_rank_that_dies(tmp_path: Path) -> None:
    with raises(hk.RemoteError, names=("rank 1", "SIGKILL")):
        hk.spawn(_dying, 3, tmp_path, timeout=100)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["went-on-0", "went-on-2"]


def _mismatched(comm: hk.Communicator) -> None:
    import torch

    with pytest.raises(hk.CollectiveMismatch):
        comm.all_reduce(torch.zeros(5000 + comm.rank, device="cuda"))


def test_a_mismatch() -> None:
    hk.spawn(_mismatched, 2, timeout=100)


def _inputs_of_jax(comm: hk.Communicator) -> None:
    import jax
    import jax.numpy as jnp
    import torch

    assert jax.default_backend() == "gpu"
    out = torch.zeros((comm.size, 5000), device="cuda")
    comm.all_gather(out, jnp.full(5000, comm.rank, jnp.float32))
    assert out.cpu().numpy().tolist() == [[float(rank)] * 5000 for rank in range(comm.size)]


def test_inputs_of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    hk.spawn(_inputs_of_jax, 2, timeout=100)
