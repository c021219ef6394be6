"""Fused all-reduces with negotiation, as in Horovod (Sergeev and Del Balso, arXiv 1802.05799).

A thread of each rank runs in cycles. In a cycle the ranks agree on the tensors that all of them have ready, put those
of one data type together in a buffer up to a threshold, sum it by one all-reduce, and copy the parts back. So ranks may
have their tensors ready in any order. The first time, ranks tell rank 0 the names of their tensors, and rank 0 answers
which all have, in which order; afterwards a tensor has a number (the *response cache*), and an all-reduce of one bit
for each tensor (AND) is enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch

from hocket.comm import Communicator
from hocket.comm.steps import Pause, Pending, Steps, VirtualBackground, wait_in_turn
from hocket.errors import Aborted, CollectiveMismatch, CommTimeout, InvalidArgument
from hocket.train.checks import check_count, name_ranks
from hocket.train.engines.engine import SummingEngine, TensorSpec
from hocket.train.engines.ordered_sums import check_backend, start_sum

_ALL_KNOWN, _STAYS, _NUM_FLAGS = 0, 1, 2
"""The first bits of a cycle: all names of this rank's ready tensors are known; it does not close."""


_IDLE_AFTER_S, _IDLE_CYCLE_S = 0.2, 0.02
"""Ranks that have had no gradients for so long meet less often, so that they leave the processors to others."""


class FusedAllReduce(SummingEngine):
    """Fused all-reduces with negotiation.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        fusion_nbytes: most bytes of the buffer of an all-reduce (Horovod's HOROVOD_FUSION_THRESHOLD); 0: every tensor
            by itself.
        backend: the library that sums; None: the one that the communicator's policy chooses.
        cycle_ms: milliseconds from the begin of a cycle to that of the next one (HOROVOD_CYCLE_TIME).

    Attributes:
        num_cycles, num_sums: number of cycles, and of all-reduces of gradients.
        num_negotiations: number of cycles in which names were sent.
    """

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """See `GradientEngine.check_options`."""
        check_count("fusion_nbytes", options["fusion_nbytes"], 0)
        cycle_ms = options["cycle_ms"]
        if isinstance(cycle_ms, bool) or not isinstance(cycle_ms, (int, float)) or not 0 <= cycle_ms <= 1000:
            raise InvalidArgument(f"cycle_ms must be a number of milliseconds from 0 to 1000, not {cycle_ms!r}")

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        fusion_nbytes: int = 64 << 20,
        cycle_ms: float = 1.0,
        backend: str | None = None,
    ) -> None:
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s)
        check_backend(comm, backend)
        self._backend = backend
        self.num_cycles = self.num_sums = self.num_negotiations = 0
        self._comm = comm.dup()
        self._fusion_nbytes, self._cycle_s = fusion_nbytes, cycle_ms / 1000
        self._numbers = {tensor.name: number for number, tensor in enumerate(self.tensors)}
        self._cached: dict[int, int] = {}
        """The place in the vector of bits of each tensor whose name all ranks know."""
        self._reported: dict[str, dict[int, tuple[int, str]]] = {}
        """On rank 0: by name, which rank has it ready, and its elements and type there."""
        self._has_told: set[int] = set()
        self._buffers: dict[torch.dtype, torch.Tensor] = {}
        self._changed = threading.Condition()  # guards the following
        self._ready: dict[int, torch.Tensor] = {}
        self._num_done = 0
        self._late = list(range(comm.size))
        """Ranks that did not have all tensors of the step ready at the last cycle."""
        self._last_used_s = 0.0
        self._error: BaseException | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="hocket fused engine", daemon=True)
        self._virtual = VirtualBackground(comm, timeout_s) if comm.is_virtual else None
        if self._virtual is None:
            self._thread.start()
        else:
            # Objects cannot travel between virtual ranks that move no data: the first step is as all others.
            self._cached = {number: number for number in range(len(self.tensors))}
            self._virtual.start(self._cycles())

    def start(self, number: int, tensor: torch.Tensor) -> None:
        """See `SummingEngine.start`."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._ready[number] = tensor
            self._changed.notify_all()
        if self._virtual is not None:
            self._virtual.wake()

    def poll(self) -> None:
        """See `SummingEngine.poll`."""
        if self._virtual is not None:
            self._virtual.poll()

    def finish(self) -> None:
        """See `SummingEngine.finish`."""
        while self._virtual is not None and self._num_done < len(self.tensors):
            self._virtual.advance()
        deadline = time.monotonic() + self.timeout_s
        with self._changed:
            while self._num_done < len(self.tensors):
                if self._error is not None:
                    raise self._error
                if not self._changed.wait(max(deadline - time.monotonic(), 0)):
                    name = self.tensors[next(iter(self._ready), 0)].name
                    if not self._late:
                        raise CommTimeout(f"the sum of {name} did not complete within {self.timeout_s:g} s")
                    raise CommTimeout(
                        f"{name_ranks(self._late)} did not have all gradients ready within {self.timeout_s:g} s: that "
                        f"of {name} could not be summed"
                    )
            self._num_done = 0

    def close(self) -> None:
        """Stop the thread, and leave the engine's communicator. Idempotent."""
        if self._virtual is not None:
            self._virtual.close()
            self._comm._leave(0.0)
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(min(self.timeout_s, 1.0))  # other ranks close at the same time, as a rule
        self._comm._leave(0.0)  # this ends a cycle that other ranks do not join
        self._thread.join()

    def _run(self) -> None:
        try:
            wait_in_turn(self._cycles(), self.timeout_s, self._pause)
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _pause(self, pause: Pause) -> None:
        if not pause.is_idle:
            time.sleep(pause.seconds)
            return
        with self._changed:
            if not self._ready and not self._is_closing:
                self._changed.wait(pause.seconds)

    def _cycles(self) -> Steps:
        """Sum what all ranks have ready, in one cycle after the other, until all ranks close."""
        while True:
            begin_s = self._comm.wtime()
            with self._changed:
                ready = dict(self._ready)
                is_closing, is_complete = self._is_closing, len(ready) + self._num_done == len(self.tensors)
            if not (yield from self._cycle(ready, is_complete, is_closing)):
                return
            now_s = self._comm.wtime()
            if now_s - self._last_used_s > _IDLE_AFTER_S:
                yield Pause(_IDLE_CYCLE_S, is_idle=True)
            elif (left_s := begin_s + self._cycle_s - now_s) > 0:
                yield Pause(left_s)  # meanwhile more gradients become ready

    def _cycle(self, ready: dict[int, torch.Tensor], is_complete: bool, is_closing: bool) -> Generator[Any, None, bool]:
        """Sum what all ranks have ready; return whether there is a further cycle."""
        size, rank = self._comm.size, self._comm.rank
        bits = np.ones(_NUM_FLAGS + len(self.tensors) + 2 * size, np.uint8)
        bits[_NUM_FLAGS : -2 * size] = 0
        bits[_ALL_KNOWN] = all(number in self._cached or number in self._has_told for number in ready)
        bits[_STAYS] = bits[-size + rank] = not is_closing
        bits[-2 * size + rank] = is_complete
        for number in ready:
            if number in self._cached:
                bits[_NUM_FLAGS + self._cached[number]] = 1
        words = np.packbits(bits)
        yield self._comm.all_reduce(words, "band", async_op=True, timeout=self.timeout_s)
        bits = np.unpackbits(words, count=len(bits))
        self.num_cycles += 1
        self._late = np.flatnonzero(bits[-2 * size : -size] == 0).tolist()
        if not bits[_STAYS]:
            if not is_closing:
                raise Aborted(f"{name_ranks(np.flatnonzero(bits[-size:] == 0).tolist())} closed the engine")
            return False
        chosen = [number for number, place in self._cached.items() if bits[_NUM_FLAGS + place]]
        if not bits[_ALL_KNOWN]:
            chosen += self._negotiate(ready)
        for numbers in self._packed(chosen):
            yield from self._sum([ready[number] for number in numbers])
            with self._changed:
                for number in numbers:
                    del self._ready[number]
                self._num_done += len(numbers)
                self._changed.notify_all()
        if bits[_NUM_FLAGS : -2 * size].any() or not bits[_ALL_KNOWN]:
            self._last_used_s = self._comm.wtime()
        return True

    def _negotiate(self, ready: dict[int, torch.Tensor]) -> list[int]:
        """Tell rank 0 the new tensors; return those that all ranks have, in rank 0's order, and remember them."""
        self.num_negotiations += 1
        new = [number for number in ready if number not in self._cached and number not in self._has_told]
        self._has_told.update(new)
        told = [(self.tensors[each].name, self.tensors[each].numel, str(self.tensors[each].dtype)) for each in new]
        of_ranks = self._comm.gather_object(told, 0, timeout=self.timeout_s)
        answer = self._answer(of_ranks) if of_ranks is not None else None
        names = self._comm.broadcast_object(answer, 0, timeout=self.timeout_s)
        if isinstance(names, str):
            raise CollectiveMismatch(names)
        numbers = [self._numbers[name] for name in names]
        for number in numbers:
            self._cached[number] = len(self._cached)
        return numbers

    def _answer(self, of_ranks: Sequence[Sequence[tuple[str, int, str]]]) -> list[str] | str:
        """Return the names that all ranks have told, on rank 0; a text: what does not fit."""
        complete = []
        for rank, told in enumerate(of_ranks):
            for name, numel, dtype in told:
                reports = self._reported.setdefault(name, {})
                reports[rank] = numel, dtype
                if len(set(reports.values())) > 1:
                    return f"the gradient of {name} differs between ranks (elements, type): {reports}"
                if len(reports) == len(of_ranks):
                    complete.append(name)
                    del self._reported[name]
        return complete

    def _packed(self, numbers: list[int]) -> Iterator[list[int]]:
        """Return tensors that are summed together, in one order on all ranks."""
        for _, group in groupby(sorted(numbers, key=self._by_dtype), key=lambda each: self.tensors[each].dtype):
            together: list[int] = []
            nbytes = 0
            for number in group:
                if together and nbytes + self.tensors[number].nbytes > self._fusion_nbytes:
                    yield together
                    together, nbytes = [], 0
                together.append(number)
                nbytes += self.tensors[number].nbytes
            yield together

    def _by_dtype(self, number: int) -> tuple[str, int]:
        return str(self.tensors[number].dtype), self._cached[number]

    def _sum(self, tensors: list[torch.Tensor]) -> Steps:
        self.num_sums += 1
        if len(tensors) == 1:
            yield self._start(tensors[0])
            return
        size = sum(each.numel() for each in tensors)
        buffer = self._buffer(tensors[0].dtype)[:size]
        parts = torch.split(buffer, [each.numel() for each in tensors])
        flats = [each.view(-1) for each in tensors]
        if self._comm.moves_data:
            torch._foreach_copy_(list(parts), flats)
        yield self._start(buffer)
        if self._comm.moves_data:
            torch._foreach_copy_(flats, list(parts))

    def _start(self, tensor: torch.Tensor) -> Pending:
        return start_sum(self._comm, tensor, self.timeout_s, exact=self.exact, backend=self._backend)

    def _buffer(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._buffers:
            nbytes = sum(each.nbytes for each in self.tensors if each.dtype == dtype)
            self._buffers[dtype] = torch.empty(min(nbytes, self._fusion_nbytes) // dtype.itemsize, dtype=dtype)
        return self._buffers[dtype]


ENGINE = FusedAllReduce
