"""The compressed sums of a communicator."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from hocket.collectives.compressed.compressor import CompressedSum, Compressor, SumRequest, checked_tensors
from hocket.collectives.compressed.registry import compressor
from hocket.collectives.residual import ResidualState
from hocket.collectives.sparse.control import (
    NUM_WORDS,
    control_words,
    do_agree,
    num_unfit,
    raise_mismatch,
    raise_not_finite,
)
from hocket.collectives.sparse.sums import NONFINITE, OPS
from hocket.collectives.sparse.vectors import clear_nonfinite, is_finite, vector_of
from hocket.collectives.work import carry_out
from hocket.comm.steps import StepsInOrder
from hocket.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hocket.collectives.compressed.compressor import Shape
    from hocket.comm import Communicator
    from hocket.comm.compressed_sums import CompressedOptions
    from hocket.comm.steps import Pending

_Steps = Generator["Pending", None, CompressedSum]


class CompressedSums:
    """The compressed sums of one communicator, on a duplicate of it: so they can go on beside other operations."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm.dup()
        self._in_order = StepsInOrder(self._comm, "hocket-compressed")
        self._num_sums = 0

    def all_reduce(self, x: Any, options: CompressedOptions, async_op: bool) -> Any:
        """See `Communicator.compressed_all_reduce`."""
        vector, write_back = vector_of(x)
        tensors = checked_tensors([tuple(x.shape)] if options.tensors is None else options.tensors, len(vector))
        chosen, state, request = self._checked(len(vector), options, tensors)

        def steps() -> _Steps:
            found = yield from self._sum("compressed all_reduce", vector, None, chosen, state, request)
            write_back()
            return found

        return carry_out(self._in_order, steps(), request.how["timeout"], async_op)

    def reduce_scatter(self, out: Any, x: Any, options: CompressedOptions, async_op: bool) -> Any:
        """See `Communicator.compressed_reduce_scatter`."""
        vector, _ = vector_of(x, is_written=False)
        part, write_back = vector_of(out)
        if len(part) * self._comm.size != len(vector):
            raise InvalidArgument(
                f"x has {len(vector)} elements, and out {len(part)}: for {self._comm.size} ranks x must have "
                f"{len(part) * self._comm.size}"
            )
        if out.dtype != x.dtype:
            raise InvalidArgument(f"out must be of {x.dtype}, as x, not of {out.dtype}")
        chosen, state, request = self._checked(len(vector), options, ((len(vector),),))
        if type(chosen).scatter_steps is Compressor.scatter_steps:
            raise InvalidArgument(f"{type(chosen).__name__} has no reduce-scatter: it sums whole tensors")

        def steps() -> _Steps:
            found = yield from self._sum("compressed reduce_scatter", vector, part, chosen, state, request)
            write_back()
            return found

        return carry_out(self._in_order, steps(), request.how["timeout"], async_op)

    def _checked(
        self, size: int, options: CompressedOptions, tensors: tuple[Shape, ...]
    ) -> tuple[Compressor, ResidualState, SumRequest]:
        """Check the options of a sum of an array of a size."""
        chosen = compressor(options.compressor)
        for name, known in (("op", OPS), ("nonfinite", NONFINITE)):
            value = getattr(options, name)
            if not isinstance(value, str) or value not in known:
                raise InvalidArgument(f"{name} must be one of {', '.join(known)}, not {value!r}")
        state = ResidualState() if options.state is None else options.state
        if not isinstance(state, ResidualState):
            raise InvalidType(f"state must be a ResidualState, not {type(state).__name__}")
        state.check(size)
        how: dict[str, Any] = {"timeout": self._comm.timeout if options.timeout is None else options.timeout}
        if options.backend is not None:
            how["backend"] = options.backend
        self._num_sums += 1
        # Arrays of one step need random numbers of their own; those with a name have the same ones after a restart.
        step = (state.num_steps, crc32(state.name.encode()) if state.name else self._num_sums)
        return chosen, state, SumRequest(tensors, options.op, options.nonfinite, step, how)

    def _sum(
        self,
        what: str,
        x: NDArray[np.float32],
        out: NDArray[np.float32] | None,
        chosen: Compressor,
        state: ResidualState,
        request: SumRequest,
    ) -> _Steps:
        """Sum x, or give each rank its part of the sum: `out`."""
        num_steps = state.num_steps
        is_finite_everywhere, has_idle = yield from self._agree(what, x, chosen, state, request)
        if not is_finite_everywhere:
            if out is None:
                yield self._comm.all_reduce(x, request.op, async_op=True, **request.how)
            else:
                yield self._comm.reduce_scatter(out, x, request.op, async_op=True, **request.how)
            state.num_steps, state.num_dense_steps = num_steps + 1, state.num_dense_steps + 1
            return CompressedSum(0, True, "x is not finite on some rank")
        if not len(x):
            state.num_steps = num_steps + 1
            return CompressedSum(0, True, "x has no elements")
        aside = None
        if has_idle:
            aside = _set_aside(state, request.tensors, (yield from self._idle(x, request)))
        if out is None:
            found = yield from chosen.steps(self._comm, x, state, request)
        else:
            found = yield from chosen.scatter_steps(self._comm, x, out, state, request)
        if aside is not None:
            for at in aside.places if out is None else []:
                x[at] = 0  # some compressors send something for zeros
            _put_back(state, aside)
        for kept in (state.residual, state.momentum):
            if kept is not None:
                clear_nonfinite(kept)
        state.num_steps = num_steps + 1  # once, also if the compressor calls a sum that counts
        return found

    def _agree(
        self, what: str, x: NDArray[np.float32], chosen: Compressor, state: ResidualState, request: SumRequest
    ) -> Generator[Pending, None, tuple[bool, bool]]:
        """Find out together whether all ranks ask for the same; return whether all of their arrays are finite, and
        whether some rank has a tensor of zeros for which it keeps something."""
        own = (
            f"{chosen!r} of {len(x)} elements, tensors={request.tensors}, op={request.op!r}, "
            f"nonfinite={request.nonfinite!r}"
        )
        has_idle = any(
            _is_zero(x[at]) and any(each is not None and each[at].any() for each in (state.residual, state.momentum))
            for at in _places(request.tensors)
        )
        words = np.append(control_words((what, own), not is_finite(x)), np.int64(has_idle))
        yield self._comm.all_reduce(words, async_op=True, **request.how)
        if not do_agree(words, self._comm.size):
            raise_mismatch(self._comm, what, own, request.how)
        if not num_unfit(words):
            return True, bool(words[NUM_WORDS])
        if request.nonfinite == "raise":
            raise_not_finite(self._comm, x, state, request.how)
        return False, False

    def _idle(self, x: NDArray[np.float32], request: SumRequest) -> Generator[Pending, None, list[int]]:
        """Return the numbers of the tensors that are zero on all ranks."""
        is_used = np.array([not _is_zero(x[at]) for at in _places(request.tensors)], np.uint8)
        yield self._comm.all_reduce(is_used, "max", async_op=True, **request.how)
        return np.flatnonzero(is_used == 0).tolist()


def _places(tensors: tuple[Shape, ...]) -> list[slice]:
    """Return where each tensor is in the array."""
    ends = np.cumsum([prod(shape) for shape in tensors]).tolist()
    return [slice(end - prod(shape), end) for end, shape in zip(ends, tensors, strict=True)]


def _is_zero(x: NDArray[np.float32]) -> bool:
    return len(x) > 0 and not x[:64].any() and not x.any()


@dataclass(frozen=True)
class _Aside:
    """What tensors keep that take no part in a step, and the size of the array."""

    size: int
    places: list[slice]
    residuals: list[tuple[slice, NDArray[np.float32]]]
    momenta: list[tuple[slice, NDArray[np.float32]]]
    factors: dict[int, NDArray[np.float32]]


def _set_aside(state: ResidualState, tensors: tuple[Shape, ...], numbers: list[int]) -> _Aside:
    """Take what some tensors keep out of a state.

    Nobody looks at the sum of a gradient that no rank has computed: what would be sent for it would be lost.
    """
    places = _places(tensors)
    taken: list[list[tuple[slice, NDArray[np.float32]]]] = []
    for name in ("residual", "momentum"):
        kept = getattr(state, name)
        taken.append([(places[number], kept[places[number]].copy()) for number in numbers] if kept is not None else [])
        if kept is not None:
            setattr(state, name, kept := kept.copy())
            for at, _ in taken[-1]:
                kept[at] = 0
    factors = {number: state.factors[number] for number in numbers if number in state.factors}
    return _Aside(places[-1].stop, [places[number] for number in numbers], taken[0], taken[1], factors)


def _put_back(state: ResidualState, aside: _Aside) -> None:
    for name, parts in (("residual", aside.residuals), ("momentum", aside.momenta)):
        kept = getattr(state, name)
        if parts and kept is None:  # the sum was dense
            setattr(state, name, kept := np.zeros(aside.size, np.float32))
        for at, part in parts:
            kept[at] = part
    state.factors |= aside.factors
