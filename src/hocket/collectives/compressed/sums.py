"""The compressed sums of a communicator."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.collectives.compressed.compressor import CompressedSum, SumRequest, check_tensors
from hocket.collectives.compressed.registry import compressor
from hocket.collectives.residual import ResidualState
from hocket.collectives.sparse.control import control_words, do_agree, num_unfit, raise_mismatch, raise_not_finite
from hocket.collectives.sparse.sums import NONFINITE, OPS
from hocket.collectives.sparse.vectors import vector_of
from hocket.comm.steps import background_of, wait_in_turn
from hocket.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hocket.collectives.compressed.compressor import Compressor
    from hocket.comm import Communicator
    from hocket.comm.compressed_sums import CompressedOptions
    from hocket.comm.steps import Background, Pending

_Steps = Generator["Pending", None, CompressedSum]


class CompressedWork:
    """A compressed sum in flight.

    Examples:
        >>> x = np.array([3.0, 1.0], np.float32)
        >>> work = comm.compressed_all_reduce(x, "cast", async_op=True)
        >>> work.wait().nbytes, x
        (4, array([6., 2.], dtype=float32))
    """

    def __init__(self, pending: Pending, found: Callable[[], CompressedSum]) -> None:
        self._pending, self._found = pending, found

    def wait(self, timeout: float | None = None) -> CompressedSum:
        """Wait for the result, at most so many seconds.

        Raises:
            CommTimeout, PeerFailure, CollectiveMismatch, NotFinite: as for `Communicator.compressed_all_reduce`.
        """
        self._pending.wait(timeout=timeout)
        return self._found()


class CompressedSums:
    """The compressed sums of one communicator, on a duplicate of it: so they can go on beside other operations."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm.dup()
        self._background: Background | None = None
        self._num_steps = 0
        self._agreed: set[str] = set()

    def all_reduce(self, x: Any, options: CompressedOptions, async_op: bool) -> Any:
        """See `Communicator.compressed_all_reduce`."""
        vector, write_back = vector_of(x)
        tensors = (tuple(x.shape),) if options.tensors is None else tuple(options.tensors)
        check_tensors(tensors, len(vector))
        chosen, state, request = self._checked(len(vector), options, tensors)

        def steps() -> _Steps:
            found = yield from self._all_reduce(vector, chosen, state, request)
            write_back()
            return found

        return self._run(steps(), request.how["timeout"], async_op)

    def reduce_scatter(self, out: Any, x: Any, options: CompressedOptions, async_op: bool) -> Any:
        """See `Communicator.compressed_reduce_scatter`."""
        vector, _ = vector_of(x)
        part, write_back = vector_of(out)
        if len(part) * self._comm.size != len(vector):
            raise InvalidArgument(
                f"x has {len(vector)} elements, and out {len(part)}: for {self._comm.size} ranks x must have "
                f"{len(part) * self._comm.size}"
            )
        if out.dtype != x.dtype:
            raise InvalidArgument(f"out must be of {x.dtype}, as x, not of {out.dtype}")
        chosen, state, request = self._checked(len(vector), options, ())

        def steps() -> _Steps:
            found = yield from self._reduce_scatter(vector, part, chosen, state, request)
            write_back()
            return found

        return self._run(steps(), request.how["timeout"], async_op)

    def _run(self, steps: _Steps, timeout_s: float, async_op: bool) -> Any:
        found: list[CompressedSum] = []

        def all_steps() -> Generator[Pending, None, None]:
            found.append((yield from steps))

        if async_op:
            return CompressedWork(self._in_background(timeout_s).start(all_steps()), partial(found.__getitem__, 0))
        if self._background is not None or self._comm.is_virtual:  # after those that are in flight
            self._in_background(timeout_s).start(all_steps()).wait()
        else:
            wait_in_turn(all_steps(), timeout_s, lambda pause: None)
        return found[0]

    def _in_background(self, timeout_s: float) -> Background:
        if self._background is None:
            self._background = background_of(self._comm, "hocket-compressed", timeout_s)
        return self._background

    def _checked(
        self, size: int, options: CompressedOptions, tensors: tuple[tuple[int, ...], ...]
    ) -> tuple[Compressor, ResidualState, SumRequest]:
        """Check the options of a sum of an array of a size."""
        chosen = compressor(options.compressor)
        for name, known in (("op", OPS), ("nonfinite", NONFINITE)):
            value = getattr(options, name)
            if value not in known:
                raise InvalidArgument(f"{name} must be one of {', '.join(known)}, not {value!r}")
        state = ResidualState() if options.state is None else options.state
        if not isinstance(state, ResidualState):
            raise InvalidType(f"state must be a ResidualState, not {type(state).__name__}")
        state.check(size)
        how: dict[str, Any] = {"timeout": self._comm.timeout if options.timeout is None else options.timeout}
        if options.backend is not None:
            how["backend"] = options.backend
        step = self._num_steps if options.state is None else state.num_steps
        self._num_steps += 1
        return chosen, state, SumRequest(tensors, options.op, options.nonfinite, step, how)

    def _all_reduce(
        self, x: NDArray[np.float32], chosen: Compressor, state: ResidualState, request: SumRequest
    ) -> _Steps:
        if not (yield from self._can_go_on("compressed all_reduce", x, chosen, state, request)):
            yield self._comm.all_reduce(x, request.op, async_op=True, **request.how)
            state.num_steps += 1
            state.num_dense_steps += 1
            return CompressedSum(0, True, "x is not finite on some rank")
        return (yield from self._counted(chosen.steps(self._comm, x, state, request), state))

    def _reduce_scatter(
        self,
        x: NDArray[np.float32],
        out: NDArray[np.float32],
        chosen: Compressor,
        state: ResidualState,
        request: SumRequest,
    ) -> _Steps:
        if not (yield from self._can_go_on("compressed reduce_scatter", x, chosen, state, request, always=True)):
            yield self._comm.reduce_scatter(out, x, request.op, async_op=True, **request.how)
            state.num_steps += 1
            state.num_dense_steps += 1
            return CompressedSum(0, True, "x is not finite on some rank")
        return (yield from self._counted(chosen.scatter_steps(self._comm, x, out, state, request), state))

    def _counted(self, steps: _Steps, state: ResidualState) -> _Steps:
        """Count a step once, also if a compressor calls another sum that counts."""
        num_steps = state.num_steps
        found = yield from steps
        state.num_steps = num_steps + 1
        return found

    def _can_go_on(
        self,
        what: str,
        x: NDArray[np.float32],
        chosen: Compressor,
        state: ResidualState,
        request: SumRequest,
        *,
        always: bool = False,
    ) -> Generator[Pending, None, bool]:
        """Find out together whether all ranks ask for the same; return whether all of their arrays are finite.

        A compressor that finds non-finite elements itself is asked only the first time, unless `always` is set.
        """
        own = f"{chosen!r} of {len(x)} elements, tensors={request.tensors}, op={request.op!r}, {request.nonfinite=}"
        if chosen.finds_nonfinite and not always and own in self._agreed:
            return True
        looks = always or not chosen.finds_nonfinite
        total = x if state.residual is None or not looks else x + state.residual
        words = control_words((what, own), looks and not np.isfinite(total).all())
        yield self._comm.all_reduce(words, async_op=True, **request.how)
        if not do_agree(words, self._comm.size):
            raise_mismatch(self._comm, what, own, request.how)
        self._agreed.add(own)
        if not num_unfit(words):
            return True
        if request.nonfinite == "raise":
            raise_not_finite(self._comm, total, state, request.how)
        return False
