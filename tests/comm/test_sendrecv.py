"""Messages that are issued together: sendrecv and batch."""

from __future__ import annotations

import time

import numpy as np
import pytest

import hocket as hk

from ..load import scaled
from ..naming import assert_names, raises

SIZES = (0, 1, 1000, 20_000, 300_000)


def _ring(comm: hk.Communicator, backends: list[str]) -> bool:
    comm.finalize()
    comm = hk.init(backends=backends, timeout=scaled(50))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for backend in [*comm.backends, None]:
        for count in SIZES:
            x, out = np.full(count, comm.rank, np.int32), np.empty(count, np.int32)
            comm.sendrecv(x, right, out, left, backend=backend)
            np.testing.assert_array_equal(out, left)
            comm.sendrecv(x, left, out, right, 3 + comm.rank, 3 + right, backend=backend)
            np.testing.assert_array_equal(out, right)
            # All at once: the receives after the sends, waited for in the order of the list.
            outs = [np.empty(count, np.int32) for _ in range(comm.size)]
            sends = [hk.Send(x + peer, peer, tag=7) for peer in range(comm.size)]
            receives = [hk.Recv(outs[peer], peer, tag=7) for peer in range(comm.size)]
            for work in comm.batch([*sends, *receives], backend=backend):
                work.wait()
            for peer, each in enumerate(outs):
                np.testing.assert_array_equal(each, peer + comm.rank)
    assert comm.batch([]) == []
    comm.finalize()
    return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("num_ranks", "backends"), [(1, ["shm"]), (3, ["shm"]), (2, ["shm", "mpi"])])
def test_ring(num_ranks: int, backends: list[str]) -> None:
    assert all(hk.spawn(_ring, num_ranks, backends, timeout=50))


def _wrong(comm: hk.Communicator) -> list[str]:
    x, out = np.ones(4), np.empty(4)
    other = 1 - comm.rank
    calls = [
        lambda: comm.sendrecv(x, other, out, 2),
        lambda: comm.sendrecv(x, -1, out, other),
        lambda: comm.sendrecv(x, other, "text", other),
        lambda: comm.sendrecv(x, other, x[1:], other),
        lambda: comm.sendrecv(x, other, out, other, -1),
        lambda: comm.batch([hk.Send(x, other), hk.Recv(out, 9)]),
        lambda: comm.batch([hk.Send(x, other), (out, other)]),
        lambda: comm.batch([hk.Send(x, other), hk.Recv(b"read-only", other)]),
    ]
    seen = []
    for call in calls:
        with pytest.raises(hk.HocketError) as caught:
            call()
        seen.append(f"{type(caught.value).__name__}: {caught.value}")
    # None of them was sent: this message is the first.
    comm.sendrecv(np.full(4, comm.rank), other, got := np.empty(4, int), other)
    np.testing.assert_array_equal(got, other)
    assert not [record for record in comm.records() if record.op in ("send", "recv")][2:]
    return seen


@pytest.mark.timeout(60)
def test_wrong_arguments_send_nothing() -> None:
    expected = [
        ("InvalidArgument", "src", "2"), ("InvalidArgument", "dst", "-1"), ("InvalidType", "x", "str"),
        ("InvalidArgument", "sendrecv", "out", "x"), ("InvalidArgument", "tag", "2147483647"),
        ("InvalidArgument", "src", "9"), ("InvalidType", "hocket.Send"), ("InvalidType", "x", "read-only"),
    ]  # fmt: skip
    for seen in hk.spawn(_wrong, 2, timeout=50):
        for text, names in zip(seen, expected, strict=True):
            assert_names(text, *names)


def _probe(comm: hk.Communicator) -> bool:
    if comm.rank == 0:
        sources = []
        for _ in range(4):
            while (source := comm.probe(tag=5)) is None:
                pass
            x = np.zeros(3 if source == 1 else 30_000)
            comm.recv(x, source, tag=5)
            assert (x == source).all()
            sources.append(source)
        assert sorted(sources) == [1, 1, 2, 2]
        assert comm.probe(tag=5) is None
    else:
        for _ in range(2):
            comm.send(np.full(3 if comm.rank == 1 else 30_000, float(comm.rank)), 0, tag=5)
        comm.send(np.ones(1), 0, tag=6)  # of another tag
    comm.barrier()
    if comm.rank == 0:
        assert comm.probe(tag=6) in (1, 2)
        for source in (1, 2):
            comm.recv(np.zeros(1), source, tag=6)
        with raises(hk.InvalidArgument, names=("tag", "0", "2147483647")):
            comm.probe(tag=-1)
        assert comm.probe(tag=7, timeout=0.05) is None
        assert comm.probe(tag=8, timeout=40) == 1  # which comes later
        comm.recv(np.zeros(1), 1, tag=8)
    elif comm.rank == 1:
        time.sleep(0.3)
        comm.send(np.ones(1), 0, tag=8)
    return True


@pytest.mark.parametrize("single_copy", ["1", "0"])
def test_probe(monkeypatch: pytest.MonkeyPatch, single_copy: str) -> None:
    monkeypatch.setenv("HOCKET_SINGLE_COPY", single_copy)
    assert all(hk.spawn(_probe, 3, timeout=50))
