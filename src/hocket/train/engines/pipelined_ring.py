"""A ring all-reduce in chunks: while chunk c is added, chunk c + 1 arrives and chunk c - 1 leaves.

A message that is received whole, then added, then sent on, leaves the link idle during the addition. In chunks all
three overlap; and if the additions are kernels of the device that has the gradients, nothing is copied to the host for
them (Awan et al., arXiv 1810.11112, for MPI_Allreduce on GPUs). A reduce-scatter of P - 1 rounds is followed by an all-
gather of P - 1 rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.comm.steps import Pending, Steps, background_of
from hocket.train.checks import check_count
from hocket.train.engines.adding import Adder, adder_for
from hocket.train.engines.buckets import BucketEngine
from hocket.train.engines.engine import TensorSpec


@dataclass(frozen=True)
class Transfer:
    """What a rank does with a chunk in one round.

    Args:
        begin, end: its elements.
        is_added: whether what arrives is added (reduce-scatter) or taken (all-gather).
        is_sent_on: whether it goes on to the next rank.
    """

    begin: int
    end: int
    is_added: bool
    is_sent_on: bool


def arrivals(numel: int, rank: int, size: int, most: int) -> list[Transfer]:
    """Return what arrives at a rank, in order.

    In round s of the reduce-scatter block (rank - s - 1) mod P arrives, in round s of the all-gather block
    (rank - s) mod P (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009).

    Args:
        numel: number of elements of the whole array.
        rank, size: this rank, and the number of ranks.
        most: most elements of a chunk.
    """
    found = []
    for number in range(2 * (size - 1)):
        is_added = number < size - 1
        block = (rank - number - 1) % size if is_added else (rank - (number - size + 1)) % size
        for begin, end in chunks_of(numel, block, size, most):
            found.append(Transfer(begin, end, is_added, number < 2 * (size - 1) - 1))
    return found


def chunks_of(numel: int, block: int, num_blocks: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the chunks of a block: first and last element."""
    begin, end = (numel * each // num_blocks for each in (block, block + 1))
    for place in range(begin, end, most):
        yield place, min(place + most, end)


class PipelinedAllReduce:
    """Sums an array over all ranks, in place, by a ring in chunks.

    Args:
        comm: a communicator of all ranks, which this object has for itself.
        adder: adds chunks.
        chunk_nbytes: most bytes of a chunk.
        depth: number of chunks that may arrive at once.
        backend: the library; None: the one that the communicator's policy chooses.
        timeout_s: timeout of every wait, in seconds.
    """

    def __init__(
        self, comm: Communicator, adder: Adder, chunk_nbytes: int, depth: int, backend: str | None, timeout_s: float
    ) -> None:
        self._comm, self._adder = comm, adder
        self._chunk_nbytes, self._depth = chunk_nbytes, depth
        self._how: dict[str, Any] = {"timeout": timeout_s, **({} if backend is None else {"backend": backend})}
        self._next, self._last = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def steps(self, array: torch.Tensor) -> Steps:
        """Sum a flat array over all ranks, in place.

        Yields:
            What it waits for; to wait is the caller's part.

        Raises:
            CommTimeout, PeerFailure: a rank hangs or died.
        """
        if self._comm.size == 1 or not array.numel():
            return
        # A chunk is never larger than a block, whatever the option says.
        most = min(max(self._chunk_nbytes // array.element_size(), 1), -(-array.numel() // self._comm.size))
        coming = deque(arrivals(array.numel(), self._comm.rank, self._comm.size, most))
        flying: deque[tuple[Transfer, torch.Tensor, Any]] = deque()
        sent: deque[Any] = deque()
        added: deque[tuple[Transfer, Any]] = deque()
        free = [array.new_empty(most) for _ in range(min(self._depth, len(coming)))]

        def receive() -> None:
            while coming and len(flying) < self._depth and (free or not coming[0].is_added):
                each = coming.popleft()
                size = each.end - each.begin
                target = free.pop()[:size] if each.is_added else array[each.begin : each.end]
                flying.append((each, target, self._comm.irecv(target, self._last, **self._how)))

        def send(begin: int, end: int) -> None:
            sent.append(self._comm.isend(array[begin:end], self._next, **self._how))

        def finish_oldest() -> None:
            done, started = added.popleft()
            if started is not None:
                token, scratch = started
                self._adder.wait(token)
                free.append(scratch.as_strided((most,), (1,)))
            if done.is_sent_on:
                send(done.begin, done.end)

        receive()
        for begin, end in chunks_of(array.numel(), self._comm.rank, self._comm.size, most):
            send(begin, end)
        while flying or added:
            # Others wait for what is added: without a further arrival, nothing is held back.
            if flying and (not added or flying[0][2].test()):
                each, target, work = flying.popleft()
                yield work
                if each.is_added:
                    added.append((each, (self._adder.add(array[each.begin : each.end], target), target)))
                elif each.is_sent_on:
                    added.append((each, None))
                if len(added) > 1:
                    finish_oldest()
            else:
                finish_oldest()
            receive()
        yield from sent


class PipelinedRing(BucketEngine):
    """Buckets, each summed by a ring in chunks, in a thread beside the backward pass.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        bucket_nbytes: number of bytes at which a bucket is full.
        chunk_nbytes: most bytes of a chunk.
        depth: number of chunks that may arrive at once.
        backend: the library that carries chunks; None: the one that the communicator's policy chooses.
    """

    has_order = False

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """See `GradientEngine.check_options`."""
        for name in ("bucket_nbytes", "chunk_nbytes", "depth"):
            check_count(name, options[name])

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        bucket_nbytes: int = 25 << 20,
        chunk_nbytes: int = 1 << 20,
        depth: int = 3,
        backend: str | None = None,
    ) -> None:
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s, limits=[bucket_nbytes], backend=backend)
        self._chunk_nbytes, self._depth = chunk_nbytes, depth
        self._rings: dict[torch.device, PipelinedAllReduce] = {}
        self._background = background_of(comm, "hocket pipelined ring", timeout_s)

    def poll(self) -> None:
        """See `SummingEngine.poll`."""
        self._background.poll()

    def close(self) -> None:
        """Stop the thread, and leave the engine's communicator. Idempotent."""
        super().close()
        self._background.close()

    def _sum(self, number: int, bucket: torch.Tensor) -> Pending:
        if bucket.device not in self._rings:
            self._rings[bucket.device] = PipelinedAllReduce(
                self._comm, adder_for(bucket.device), self._chunk_nbytes, self._depth, self._backend, self.timeout_s
            )
        return self._background.start(self._rings[bucket.device].steps(bucket))


ENGINE = PipelinedRing
