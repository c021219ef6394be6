"""Messages: matched by sender and tag in issue order, even if they cross."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

import hocket as hk
from hocket import _native

from ..backends import MESSAGES_ALONE
from ..load import scaled
from .data import DTYPES, make_items
from .outcome import check

_CONSTANTS = _native.CONSTANTS
_SHORT = 100
_LONG = 3 * _CONSTANTS["bulk_bytes"] + 77
_BORDERS = sorted(
    _CONSTANTS[name] + extra
    for name in ("line_bytes", "ring_message_bytes", "ring_bytes", "bulk_bytes")
    for extra in (-1, 0, 1)
)


def _message(nbytes: int, *name: int) -> np.ndarray:
    return np.random.default_rng(name).integers(0, 256, nbytes, dtype=np.uint8)


def _tags_out_of_order(comm: hk.Communicator) -> None:
    tags = [3, 0, 2**31 - 1, 7, 1]
    for nbytes in (0, 1, _SHORT, *_BORDERS, _LONG):
        if comm.rank == 0:
            works = [comm.isend(_message(nbytes, tag, nbytes), 1, tag) for tag in tags]
            for work in works:
                work.wait()
        elif comm.rank == 1:
            for tag in reversed(tags):
                x = np.zeros(nbytes, np.uint8)
                comm.recv(x, 0, tag)
                check(x, _message(nbytes, tag, nbytes), f"{nbytes} bytes with tag {tag}", 1)
    comm.barrier()


def _same_tag_keeps_its_order(comm: hk.Communicator) -> None:
    sizes = [_LONG, 5, _SHORT, _CONSTANTS["ring_message_bytes"], _LONG, 0, 1] * 4
    if comm.rank == 0:
        for i, nbytes in enumerate(sizes):
            comm.isend(_message(nbytes, i), 1, 4)
        comm.send(_message(1, 99), 1, 5)  # overtakes all of them
        return
    last = np.zeros(1, np.uint8)
    comm.recv(last, 0, 5)
    check(last, _message(1, 99), "the message with another tag", 1)
    arrays = [np.zeros(nbytes, np.uint8) for nbytes in sizes]
    works = [comm.irecv(x, 0, 4) for x in arrays]
    for work in reversed(works):
        work.wait()
    for i, x in enumerate(arrays):
        check(x, _message(x.size, i), f"message {i}", 1)


def _many_outstanding(comm: hk.Communicator, seed: int) -> None:
    """Every rank to every rank, including itself: all sizes and types, issued and waited for in random orders."""
    sizes = [0, 1, _SHORT, _CONSTANTS["ring_message_bytes"], _CONSTANTS["ring_message_bytes"] + 1, _LONG]
    plan = random.Random(seed)
    messages = [
        (src, dst, tag, dtype, plan.choice(sizes) // DTYPES[dtype].itemsize)
        for src in range(comm.size)
        for dst in range(comm.size)
        for tag, dtype in enumerate(DTYPES)
    ]
    mine = [m for m in messages if comm.rank in (m[0], m[1])]
    order = random.Random(seed * 100 + comm.rank)
    order.shuffle(mine)
    works, received = [], []
    for src, dst, tag, dtype, count in mine:
        if src == comm.rank:
            works.append(comm.isend(make_items(dtype, count, src, dst, tag), dst, tag))
        if dst == comm.rank:
            x = np.zeros(count, DTYPES[dtype])
            works.append(comm.irecv(x, src, tag))
            received.append((x, src, tag, dtype, count))
        if order.random() < 0.1:
            works[order.randrange(len(works))].test()
    order.shuffle(works)
    for work in works:
        work.wait()
    for x, src, tag, dtype, count in received:
        check(x, make_items(dtype, count, src, comm.rank, tag), f"{count} {dtype}, tag {tag}, from {src}", comm.rank)


def _run_many(comm: hk.Communicator) -> None:
    for seed in range(5):
        _many_outstanding(comm, seed)


def _to_itself(comm: hk.Communicator) -> None:
    for nbytes in (0, 1, *_BORDERS, _LONG):
        x, message = np.zeros(nbytes, np.uint8), _message(nbytes, nbytes)
        receive = comm.irecv(x, comm.rank, 6)
        comm.send(message, comm.rank, 6)
        receive.wait()
        check(x, message, f"{nbytes} bytes to itself", comm.rank)
        x[:] = 0
        send = comm.isend(message, comm.rank, 7)
        comm.recv(x, comm.rank, 7)
        send.wait()
        check(x, message, f"{nbytes} bytes to itself, sent first", comm.rank)


def _beside_collectives(comm: hk.Communicator) -> None:
    """A message does not wait for collectives, and has no place in their order."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(20):
        out, total = np.zeros(_LONG, np.uint8), np.full(50_000, comm.rank, np.int64)
        receive = comm.irecv(out, left, turn)
        reduction = comm.all_reduce(total, async_op=True)
        if comm.rank % 2:
            comm.barrier()
            comm.send(_message(_LONG, comm.rank, turn), right, turn)
        else:
            comm.send(_message(_LONG, comm.rank, turn), right, turn)
            comm.barrier()
        receive.wait()
        reduction.wait()
        check(out, _message(_LONG, left, turn), f"turn {turn}", comm.rank)
        assert (total == sum(range(comm.size))).all()


def _over(comm: hk.Communicator, run: Callable[[hk.Communicator], None], backend: str) -> None:
    if backend != "shm":
        comm.finalize()
        comm = hk.init(backends=backend, timeout=scaled(40))
    run(comm)
    used = {record.backend for record in comm.records() if record.op in ("send", "recv")}
    assert used <= {backend}, used


@pytest.mark.timeout(60)
@pytest.mark.parametrize("backend", ["shm", *MESSAGES_ALONE])
@pytest.mark.parametrize(
    ("run", "num_ranks"),
    [
        (_tags_out_of_order, 2),
        (_same_tag_keeps_its_order, 2),
        (_run_many, 2),
        (_run_many, 4),
        (_to_itself, 2),
        (_to_itself, 1),
        (_beside_collectives, 3),
    ],
)
def test_messages(run: Callable[[hk.Communicator], None], num_ranks: int, backend: str) -> None:
    hk.spawn(_over, num_ranks, run, backend, timeout=50)


def _all_send_first(comm: hk.Communicator) -> int:
    """Every rank sends to the right before it receives from the left, with messages of many lengths."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    counts = [1, 8192, 8193, 100_000, 3_000_000, 7]
    sent = [np.full(count, comm.rank + i, np.uint8) for i, count in enumerate(counts)]
    for i, x in enumerate(sent):
        comm.send(x, right, tag=i % 2)
    for _ in range(200):  # more than the ring holds
        comm.send(sent[1], right, tag=9)
    for i, count in enumerate(counts):
        out = np.zeros(count, np.uint8)
        comm.recv(out, left, tag=i % 2)
        assert (out == left + i).all(), i
    for _ in range(200):
        out = np.zeros(8192, np.uint8)
        comm.recv(out, left, tag=9)
        assert (out == left + 1).all()
    return sum(counts)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_sends_before_receives_at_any_size(num_ranks: int) -> None:
    assert len(set(hk.spawn(_all_send_first, num_ranks, timeout=60))) == 1
