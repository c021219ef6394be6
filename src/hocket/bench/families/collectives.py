"""Blocking collectives with equal parts or with counts, on memory or on objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.bench.arrays import Arrays
from hocket.bench.drivers.base import Call
from hocket.bench.flows import FLOWS, Sizes
from hocket.bench.patterns import REDUCTIONS, fold, pattern, to_reduce
from hocket.bench.point import PLACES
from hocket.bench.registry import Benchmark, Prepared, Setting
from hocket.errors import InvalidArgument, WrongResult
from hocket.measure.loops import looped

OMB_NAMES = {
    "all_gather": "allgather", "all_reduce": "allreduce", "all_to_all": "alltoall", "barrier": "barrier",
    "broadcast": "bcast", "gather": "gather", "reduce": "reduce", "reduce_scatter": "reduce_scatter",
    "scatter": "scatter",
}  # fmt: skip
"""The names in OMB, which prefixes non-blocking benchmarks with "i" and appends "_persistent" to persistent ones."""
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("reduce", "all_reduce", "reduce_scatter", "scan")


class _RepeatedCall(Prepared):
    """The same call, repeated.

    Args:
        setting: the setting of the benchmark.
        op: the collective.
    """

    once: Call

    def __init__(self, setting: Setting, op: str) -> None:
        self._setting, self._op, self._flow = setting, op, FLOWS[op]
        self._sizes = sizes_of(setting, op)
        self._arrays = Arrays(setting)

    def run(self, iterations: int) -> None:
        looped(self.once)(iterations)

    def _contents(self, turn: int) -> list[NDArray[Any]]:
        """Return the input of each rank."""
        point, size = self._setting.point, self._setting.driver.size
        lengths = [self._flow.x_count(self._sizes, each) or 0 for each in range(size)]
        xs = [pattern(length, point.dtype, each, turn) for each, length in enumerate(lengths)]
        if self._op not in REDUCING:
            return xs
        return [to_reduce(x, point.reduction, each, size) for each, x in enumerate(xs)]

    def _expected(self, xs: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
        """Return the result of these inputs on this rank; None if it has no defined result."""
        add = partial(fold, reduction=self._setting.point.reduction)
        return self._flow.result(self._sizes, xs, self._setting.driver.rank, add)


class OnMemory(_RepeatedCall):
    """A collective on arrays that are bound once.

    Args:
        setting, op: as in `_RepeatedCall`.
        with_counts: whether to use the form with counts.
        bind: takes the operation's name and arguments and returns the call; None: the library's blocking form.

    Raises:
        InvalidArgument: the library does not support the operation.
    """

    def __init__(
        self, setting: Setting, op: str, with_counts: bool = False, bind: Callable[..., Call] | None = None
    ) -> None:
        super().__init__(setting, op)
        point, driver = setting.point, setting.driver
        rank = driver.rank
        if bind is not None and op not in driver.binders(point.api):
            raise InvalidArgument(f"{driver.name} has no {op} with API {point.api}")
        form, arguments = op, self._make_arrays(op)
        if point.place and (point.place == "in") != (self._flow.out_count is None):  # not the natural form
            form = f"{op} {PLACES[point.place]}"
        counts = self._sizes.counts
        has_counts = with_counts or len(set(counts)) > 1
        if has_counts:
            arguments.append([counts[rank]] * len(counts) if op == "all_to_all" else counts)
            if op == "all_to_all":
                arguments.append(counts)
        if op in _WITH_ROOT:
            arguments.append(0)
        if op in REDUCING:
            arguments.append(point.reduction)
        if has_counts and form != op:
            raise InvalidArgument(
                f"{form} needs equal parts: {sum(counts)} elements cannot be divided equally by {len(counts)} ranks"
            )
        self.once = (bind or partial(driver.bind, point.api))(f"{form}v" if has_counts else form, *arguments)

    def _make_arrays(self, op: str) -> list[Any]:
        """Make the arrays of this rank's input and result; return the operation's arguments for them."""
        point, driver, arrays, sizes = self._setting.point, self._setting.driver, self._arrays, self._sizes
        x_count = self._flow.x_count(sizes, driver.rank)
        if self._flow.out_count is None:
            out_count = None if op == "reduce" and driver.rank else x_count
        else:
            out_count = self._flow.out_count(sizes, driver.rank)
            if point.place == "in":
                return self._make_arrays_in_place(op, x_count, out_count)
        self._x = None if x_count is None else arrays.make(x_count, "x")
        if self._flow.out_count is None and point.place != "out":
            self._result = self._x
            return [] if op == "barrier" else [self._x]
        self._result = None if out_count is None else arrays.make(out_count, "out")
        return [self._result, self._x]

    def _make_arrays_in_place(self, op: str, x_count: int | None, out_count: int | None) -> list[Any]:
        """Do the same for the in-place form, in which a rank's own data is a part of the whole array.

        Args:
            op: the collective.
            x_count, out_count: number of elements of the input and of the result; None: this rank has no such array.
        """
        arrays, driver = self._arrays, self._setting.driver
        gathers = op in ("gather", "all_gather")
        has_whole = x_count is not None and out_count is not None
        if op == "all_to_all":
            whole = own = arrays.make(x_count or 0, "x")
        elif has_whole:
            whole = arrays.make(max(x_count or 0, out_count or 0), "out" if gathers else "x")
            first, last = self._sizes.bounds(driver.rank)
            if op == "reduce_scatter" and driver.reduces_to_start:
                first, last = 0, last - first
            own = arrays.part(whole, first, last)
        else:
            whole, own = None, arrays.make((x_count if gathers else out_count) or 0, "x" if gathers else "out")
        self._x, self._result = (own, whole) if gathers else (whole, own)
        return [self._result, self._x]

    def check(self, turn: int) -> None:
        xs = self._contents(turn)
        if self._x is not None:
            self._arrays.write(self._x, xs[self._setting.driver.rank])
        self.once()
        expected = self._expected(xs)
        if expected is not None and self._result is not None:
            compare(self._arrays.read(self._result), expected, self._setting.point.key.name)
        for each in (self._x, self._result):  # repeated reductions in place do not change zeros
            if each is not None:
                self._arrays.clear(each)


class OnObjects(_RepeatedCall):
    """A collective of objects; the objects are arrays, as in OMB-Py."""

    def __init__(self, setting: Setting, op: str) -> None:
        super().__init__(setting, op)
        self.once = self._bind(self._pack(0 * self._contents(0)[setting.driver.rank]))

    def check(self, turn: int) -> None:
        xs = self._contents(turn)
        found = self._bind(self._pack(xs[self._setting.driver.rank]))()
        expected = self._expected(xs)
        if expected is not None:
            parts = found if isinstance(found, list) else [found]
            joined = np.concatenate([self._arrays.read(each) for each in parts])
            compare(joined, expected, self._setting.point.key.name)

    def _bind(self, objects: Any) -> Callable[[], Any]:
        point, driver = self._setting.point, self._setting.driver
        add = [REDUCTIONS[point.reduction]] if self._op in REDUCING else []
        return driver.bind(point.api, self._op, objects, *add)

    def _pack(self, content: NDArray[Any]) -> Any:
        """Return the content as one array, or as a list of arrays, one per rank, if the operation takes a list."""
        whole = self._arrays.of(content)
        if self._op not in ("scatter", "all_to_all", "reduce_scatter"):
            return whole
        size = self._setting.driver.size
        if self._op == "scatter" and self._setting.driver.rank:
            return None
        return [self._arrays.of(self._sizes.part(content, each)) for each in range(size)]


def sizes_of(setting: Setting, op: str) -> Sizes:
    """Return the lengths of arrays: the message of a reduce_scatter is the whole array, that of others each part."""
    size = setting.driver.size
    count = setting.point.nbytes // itemsize_of(setting.point.dtype)
    if op == "reduce_scatter":
        return Sizes(count, tuple(count // size + (rank < count % size) for rank in range(size)))
    return Sizes(count, (count,) * size)


def itemsize_of(dtype: str) -> int:
    """Return the size of an element in bytes."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def compare(found: NDArray[Any], expected: NDArray[Any], name: str) -> None:
    """Raise WrongResult if two arrays differ.

    Args:
        found: the result.
        expected: the right result.
        name: what computed `found`, for the message, which also names the first wrong element.
    """
    if found.shape != expected.shape:
        raise WrongResult(f"{name} gave {found.size} elements instead of {expected.size}")
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        place = int(wrong[0])
        raise WrongResult(
            f"{name} gave {found[place]} instead of {expected[place]} at element {place} of {expected.size}; "
            f"{wrong.size} are wrong"
        )


def _make(op: str, with_counts: bool, setting: Setting) -> Prepared:
    if setting.point.has_objects and op != "barrier":
        return OnObjects(setting, op)
    return OnMemory(setting, op, with_counts)


def benchmark_of(
    op: str, name: str, title: str, make: Callable[[Setting], Prepared], summary: str, aliases: Sequence[str],
    **options: Any,
) -> Benchmark:  # fmt: skip
    """Return a benchmark of a collective; `options` are more arguments of `Benchmark`."""
    least_nbytes = 4 if op in REDUCING else 1
    return Benchmark(
        name, title, "us", make, summary, tuple(aliases), op=op, reduces=op in REDUCING, has_sizes=op != "barrier",
        least_nbytes=least_nbytes, **options,
    )  # fmt: skip


def _collective(op: str, title: str, aliases: Sequence[str], summary: str, with_counts: bool = False) -> Benchmark:
    name, has_places = f"{op}v" if with_counts else op, not with_counts and op not in ("broadcast", "barrier")
    make = partial(_make, op, with_counts)
    return benchmark_of(op, name, title, make, summary, aliases, is_windowed=True, has_places=has_places)


BENCHMARKS = (
    _collective("all_gather", "Allgather", ["allgather"], "every rank gets the messages of all ranks"),
    _collective("all_gather", "Allgatherv", ["allgatherv"], "all_gather with a count for each rank", True),
    _collective("all_reduce", "Allreduce", ["allreduce"], "every rank gets the reduction of all messages"),
    _collective("all_to_all", "Alltoall", ["alltoall"], "every rank sends a message to every rank"),
    _collective("all_to_all", "Alltoallv", ["alltoallv"], "all_to_all with a count for each pair of ranks", True),
    _collective("barrier", "Barrier", [], "every rank waits until all ranks have called it"),
    _collective("broadcast", "Bcast", ["bcast"], "every rank gets the root's message"),
    _collective("gather", "Gather", ["gather"], "the root gets the messages of all ranks"),
    _collective("gather", "Gatherv", ["gatherv"], "gather with a count for each rank", True),
    _collective("reduce", "Reduce", ["reduce"], "the root gets the reduction of all messages"),
    _collective("reduce_scatter", "Reduce_scatter", [], "every rank gets its part of the reduction of all messages"),
    _collective("scan", "Scan", ["scan"], "every rank gets the reduction of the messages of lower ranks and its own"),
    _collective("scatter", "Scatter", ["scatter"], "the root sends a different message to every rank"),
    _collective("scatter", "Scatterv", ["scatterv"], "scatter with a count for each rank", True),
)
