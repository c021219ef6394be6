"""The sparse all-reduce of a communicator."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket import _native
from hocket.collectives.residual import ResidualState
from hocket.collectives.sparse.control import (
    NUM_WORDS,
    control_words,
    do_agree,
    num_unfit,
    raise_mismatch,
    raise_not_finite,
)
from hocket.collectives.sparse.elements import ElementCodec, Elements
from hocket.collectives.sparse.exchange import exchange
from hocket.collectives.sparse.published import PUBLISHED
from hocket.collectives.sparse.regions import count_first
from hocket.collectives.sparse.trial import DenseTrial
from hocket.collectives.sparse.vectors import clear_nonfinite, is_finite, vector_of
from hocket.collectives.work import carry_out
from hocket.comm.sparse_sums import HasSparseSums, SparseOptions
from hocket.comm.steps import StepsInOrder
from hocket.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hocket.comm import Communicator
    from hocket.comm.steps import Pending

ALGORITHMS = ("exact", *PUBLISHED)
OPS = ("sum", "avg")
NONFINITE = ("raise", "pass")
DENSE = ("auto", "never", "always")
_MOST_TRIALS = 1000
"""So many kinds of sums are remembered."""


@dataclass(frozen=True)
class SparseSum:
    """The result of a sparse all-reduce; equal on all ranks but for what this rank has sent.

    Args:
        places: of the elements of the sum that are not zero, ascending; uint32. Empty after a dense step.
        values: as many; float32.
        is_dense: whether the array was summed as a whole.
        why: the reason of that.
        nbytes: bytes of elements that this rank has sent: its own ones, and its part of the result. Control words, and
            parts of other ranks that it passed on, are left out.

    Examples:
        >>> x = np.array([3.0, 1.0, 0.0, -2.0], np.float32)
        >>> found = comm.sparse_all_reduce(x, k=2, dense="never")
        >>> found.places, found.values, found.why
        (array([0, 3], dtype=uint32), array([ 6., -4.], dtype=float32), "dense='never'")
    """

    places: NDArray[np.uint32]
    values: NDArray[np.float32]
    is_dense: bool
    why: str
    nbytes: tuple[int, int]


@dataclass(frozen=True)
class _Request:
    """What must be equal on all ranks."""

    size: int
    k: int
    codec: ElementCodec
    algorithm: str
    op: str
    nonfinite: str
    dense: str


class SparseSums:
    """The sparse all-reduces of one communicator, on a duplicate of it: so they can go on beside other operations."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm.dup()
        self._in_order = StepsInOrder(self._comm, "hocket-sparse")
        self._trials: dict[_Request, DenseTrial] = {}

    def all_reduce(self, x: Any, options: SparseOptions, async_op: bool) -> Any:
        """See `Communicator.sparse_all_reduce`."""
        if isinstance(options.state, ResidualState):
            options.state._settled = None  # of another sum
        vector, write_back = vector_of(x)
        request, how = _checked(len(vector), options), self._how(options)

        def steps() -> Generator[Pending, None, SparseSum]:
            found = yield from self._sum(vector, request, options.state, how)
            write_back()
            return found

        if request in self._trials and self._trials[request].decision and options.state is not None:
            options.state._settled = _Settled(self, x, options, self._trials[request].reason)
        return carry_out(self._in_order, steps(), how["timeout"], async_op)

    def steps(self, x: NDArray[np.float32], options: SparseOptions) -> Generator[Pending, None, SparseSum]:
        """Return the steps of `all_reduce` for a vector, for whoever carries them out with others of its own."""
        return self._sum(x, _checked(len(x), options), options.state, self._how(options))

    def _how(self, options: SparseOptions) -> dict[str, Any]:
        timeout = self._comm.timeout if options.timeout is None else options.timeout
        return {"timeout": timeout} if options.backend is None else {"timeout": timeout, "backend": options.backend}

    def _sum(
        self, x: NDArray[np.float32], request: _Request, state: ResidualState | None, how: dict[str, Any]
    ) -> Generator[Pending, None, SparseSum]:
        if request not in self._trials and len(self._trials) >= _MOST_TRIALS:
            del self._trials[next(iter(self._trials))]  # on all ranks the same one: they have made the same requests
        return _sum(self._comm, x, request, state, self._trials.setdefault(request, DenseTrial(request.dense)), how)


class _Settled:
    """A sum that all ranks know to be dense: nothing is left to find out, and a call takes as long as an all_reduce.

    With arrays of 1 MiB in shared memory that is 0.1 ms, of which each microsecond of Python is a percent.
    """

    def __init__(self, sums: SparseSums, x: Any, options: SparseOptions, why: str) -> None:
        self._sums, self._options, self._state = sums, options, options.state
        self._shape, self._dtype, self._in_order = x.shape, x.dtype, sums._in_order
        given = {
            "timeout": options.timeout,
            "backend": options.backend,
            "op": options.op if options.op != "sum" else None,
        }
        named = {name: each for name, each in given.items() if each is not None}
        self._all_reduce = partial(sums._comm.all_reduce, **named) if named else sums._comm.all_reduce
        self._result = _no_elements(why)

    def again(self, comm: HasSparseSums, x: Any, options: tuple[Any, ...]) -> SparseSum | None:
        """Sum x, if this call is the same but for the elements."""
        state = self._state
        if (
            options != self._options
            or getattr(x, "shape", None) != self._shape
            or x.dtype is not self._dtype
            or state.residual is not None
            or comm._sparse is not self._sums
            or not self._in_order.is_idle
        ):
            return None
        self._all_reduce(x)
        state.num_steps += 1
        state.num_dense_steps += 1
        return self._result


def _checked(size: int, options: SparseOptions) -> _Request:
    """Check the options of a sum of an array of a size."""
    choices = {"algorithm": ALGORITHMS, "op": OPS, "nonfinite": NONFINITE, "dense": DENSE}
    for name, known in choices.items():
        value = getattr(options, name)
        if not isinstance(value, str) or value not in known:
            raise InvalidArgument(f"{name} must be one of {', '.join(known)}, not {value!r}")
    if size >= 1 << 32:
        raise InvalidArgument(f"x has {size} elements, but places have 32 bits: sum it in parts")
    codec = ElementCodec() if options.codec is None else options.codec
    if not isinstance(codec, ElementCodec):
        raise InvalidType(f"codec must be an ElementCodec, as ElementCodec('packed', 'int8'), not {codec!r:.80}")
    if options.state is not None:
        if not isinstance(options.state, ResidualState):
            raise InvalidType(f"state must be a ResidualState, not {type(options.state).__name__}")
        options.state.check(size)
    k = _count(options.k, options.density, size)
    if options.algorithm != "exact" and codec.rounds:
        raise InvalidArgument(f"values of {options.algorithm} are sent as float32, not as {codec.values}")
    return _Request(size, k, codec, options.algorithm, options.op, options.nonfinite, options.dense)


def _count(k: Any, density: Any, size: int) -> int:
    """Return the number of elements that are sent."""
    if (k is None) == (density is None):
        raise InvalidArgument("give either k, the number of elements, or density, their share of the array")
    if density is not None:
        if isinstance(density, bool) or not isinstance(density, (int, float)) or not 0 < density <= 1:
            raise InvalidArgument(f"density must be a number above 0 and at most 1, not {density!r}")
        k = max(round(density * size), 1)
    if not size:
        raise InvalidArgument("x has 0 elements, but must have 1 or more")
    if type(k) is not int or not 1 <= k <= size:
        raise InvalidArgument(f"k must be an int from 1 to the {size} elements of x, not {k!r}")
    return k


def _sum(
    comm: Communicator,
    x: NDArray[np.float32],
    request: _Request,
    state: ResidualState | None,
    trial: DenseTrial,
    how: dict[str, Any],
) -> Generator[Pending, None, SparseSum]:
    begin_s = comm.wtime()
    is_settled = trial.decision is True  # all ranks know it, and a rank that deviates is found by the all_reduce
    if not is_settled:
        is_dense = trial.is_dense
        total, own = (x, None) if is_dense else _select(x, request, state)
        unfit = own is None and not is_dense
        words = np.concatenate((control_words(request, unfit), trial.words()))
        places = np.empty(0, np.uint32) if own is None else own.places
        words, counted = yield from count_first(comm, places, request.size, words, **how)
        if not do_agree(words, comm.size):
            raise_mismatch(comm, "sparse all_reduce", repr(request)[len("_Request") :], how)
        trial.decide(words[NUM_WORDS:], comm.size)
        if num_unfit(words):
            if request.nonfinite == "raise":
                raise_not_finite(comm, total, state, how)
            # The residual waits for a step with finite values.
            yield comm.all_reduce(x, request.op, async_op=True, **how)
            return _dense(state, "x is not finite on some rank")
        is_settled = is_dense or trial.is_dense
    if is_settled:
        if state is None or state.residual is None:
            yield comm.all_reduce(x, request.op, async_op=True, **how)
        else:
            whole = x + state.residual
            yield comm.all_reduce(whole, request.op, async_op=True, **how)
            x[:] = whole
            if is_finite(whole):  # else whoever has let it pass throws it away
                state.residual = None
        trial.note(comm.wtime() - begin_s, was_dense=True)
        return _dense(state, trial.reason)
    assert own is not None
    if request.algorithm == "exact":
        done = yield from exchange(comm, own, request.size, request.k, counted, request.codec, **how)
    else:
        memory = {} if state is None else state._memory
        published = PUBLISHED[request.algorithm]
        done = yield from published.exchange(comm, own, request.size, request.k, request.codec, memory, **how)
    if state is not None:
        _settle(state, total, own, done.carried, done.total, done.lost)
    values = done.total.values
    if request.op == "avg":
        values /= np.float32(comm.size)
    x.fill(0)
    x[done.total.places] = values
    trial.note(comm.wtime() - begin_s, was_dense=False)
    return SparseSum(done.total.places, values, False, trial.reason, done.nbytes)


def _select(
    x: NDArray[np.float32], request: _Request, state: ResidualState | None
) -> tuple[NDArray[np.float32], Elements | None]:
    """Return the array with its residual, and the elements to send; None if some element is not finite."""
    if request.algorithm != "exact":
        total = x + state.residual if state is not None and state.residual is not None else x.copy()
        if not np.isfinite(total).all():
            return total, None
        memory = {} if state is None else state._memory
        return total, PUBLISHED[request.algorithm].select(total, request.k, memory)
    if state is None or state.residual is None:
        total = x if state is None else x.copy()
        found = _native.select_largest(x, request.k)
    else:
        if state._spare is None or len(state._spare) != len(x):
            state._spare = np.empty_like(x)
        total = state._spare
        found = _native.select_largest(x, request.k, state.residual, total)
    return total, None if found is None else Elements(found[0], found[1])


def _settle(
    state: ResidualState,
    total: NDArray[np.float32],
    own: Elements,
    carried: NDArray[np.float32],
    sums: Elements,
    lost: Elements | None,
) -> None:
    """Keep what has not become part of the result."""
    _native.subtract_kept(total, own.places, carried, sums.places)
    if lost is not None:
        total[lost.places] += lost.values
        clear_nonfinite(total)
    state.residual, state._spare = total, state.residual
    state.num_steps += 1


def _dense(state: ResidualState | None, why: str) -> SparseSum:
    if state is not None:
        state.num_steps += 1
        state.num_dense_steps += 1
    return _no_elements(why)


def _no_elements(why: str) -> SparseSum:
    return SparseSum(np.empty(0, np.uint32), np.empty(0, np.float32), True, why, (0, 0))
