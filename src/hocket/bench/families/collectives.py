"""Blocking collectives, with equal parts and with counts, on memory and on objects."""

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
"""In OMB's spelling: of its non-blocking benchmarks behind an i, of its persistent ones before _persistent."""
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("reduce", "all_reduce", "reduce_scatter", "scan")


class _Calls(Prepared):
    """The same call, one time after the other.

    Args:
        setting: of the benchmark.
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
        """What each rank gives."""
        point, size = self._setting.point, self._setting.driver.size
        lengths = [self._flow.given(self._sizes, each) or 0 for each in range(size)]
        xs = [pattern(length, point.dtype, each, turn) for each, length in enumerate(lengths)]
        if self._op not in REDUCING:
            return xs
        return [to_reduce(x, point.reduction, each, size) for each, x in enumerate(xs)]

    def _wanted(self, xs: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
        """What this rank gets of that; None: nothing that counts."""
        add = partial(fold, reduction=self._setting.point.reduction)
        return self._flow.result(self._sizes, xs, self._setting.driver.rank, add)


class OnMemory(_Calls):
    """A collective whose arrays are given once.

    Args:
        setting, op: as of `_Calls`.
        with_counts: its form with counts.
        bind: of name and arguments, makes what is called; None: the library's plain form.

    Raises:
        InvalidArgument: the library has no such operation.
    """

    def __init__(
        self, setting: Setting, op: str, with_counts: bool = False, bind: Callable[..., Call] | None = None
    ) -> None:
        super().__init__(setting, op)
        point, driver = setting.point, setting.driver
        rank = driver.rank
        if bind is not None and op not in driver.binders(point.api):
            raise InvalidArgument(f"{driver.name} has no {op} by {point.api}")
        form, arguments = op, self._lay_out(op)
        if point.place and (point.place == "in") != (self._flow.gets is None):  # not what it is by nature
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
                f"{form} has equal parts, and {sum(counts)} elements make none for {len(counts)} ranks"
            )
        self.once = (bind or partial(driver.bind, point.api))(f"{form}v" if has_counts else form, *arguments)

    def _lay_out(self, op: str) -> list[Any]:
        """Make what a rank gives and where the result stands; return the arguments that stand for them."""
        point, driver, arrays, sizes = self._setting.point, self._setting.driver, self._arrays, self._sizes
        given = self._flow.given(sizes, driver.rank)
        if self._flow.gets is None:
            gets = None if op == "reduce" and driver.rank else given
        else:
            gets = self._flow.gets(sizes, driver.rank)
            if point.place == "in":
                return self._lay_out_in_place(op, given, gets)
        self._x = None if given is None else arrays.make(given, "x")
        if self._flow.gets is None and point.place != "out":
            self._result = self._x
            return [] if op == "barrier" else [self._x]
        self._result = None if gets is None else arrays.make(gets, "out")
        return [self._result, self._x]

    def _lay_out_in_place(self, op: str, given: int | None, gets: int | None) -> list[Any]:
        """The same for a rank's own data as a part of the whole, on the ranks that have a whole."""
        arrays, driver = self._arrays, self._setting.driver
        gathers = op in ("gather", "all_gather")
        has_whole = given is not None and gets is not None
        if op == "all_to_all":
            whole = own = arrays.make(given or 0, "x")
        elif has_whole:
            whole = arrays.make(max(given or 0, gets or 0), "out" if gathers else "x")
            first, last = self._sizes.bounds(driver.rank)
            if op == "reduce_scatter" and driver.reduces_to_start:
                first, last = 0, last - first
            own = arrays.part(whole, first, last)
        else:
            whole, own = None, arrays.make((given if gathers else gets) or 0, "x" if gathers else "out")
        self._x, self._result = (own, whole) if gathers else (whole, own)
        return [self._result, self._x]

    def check(self, turn: int) -> None:
        xs = self._contents(turn)
        if self._x is not None:
            self._arrays.write(self._x, xs[self._setting.driver.rank])
        self.once()
        wanted = self._wanted(xs)
        if wanted is not None and self._result is not None:
            compare(self._arrays.read(self._result), wanted, self._setting.point.key.name)
        for each in (self._x, self._result):  # zeros stay what they are, however often they are added up
            if each is not None:
                self._arrays.clear(each)


class OnObjects(_Calls):
    """A collective of objects, which are arrays here, as OMB-Py's are."""

    def __init__(self, setting: Setting, op: str) -> None:
        super().__init__(setting, op)
        self.once = self._bind(self._pack(0 * self._contents(0)[setting.driver.rank]))

    def check(self, turn: int) -> None:
        xs = self._contents(turn)
        found = self._bind(self._pack(xs[self._setting.driver.rank]))()
        wanted = self._wanted(xs)
        if wanted is not None:
            parts = found if isinstance(found, list) else [found]
            joined = np.concatenate([self._arrays.read(each) for each in parts])
            compare(joined, wanted, self._setting.point.key.name)

    def _bind(self, given: Any) -> Callable[[], Any]:
        point, driver = self._setting.point, self._setting.driver
        add = [REDUCTIONS[point.reduction]] if self._op in REDUCING else []
        return driver.bind(point.api, self._op, given, *add)

    def _pack(self, content: NDArray[Any]) -> Any:
        """An array as an object, or as a list of one for each rank."""
        whole = self._arrays.of(content)
        if self._op not in ("scatter", "all_to_all", "reduce_scatter"):
            return whole
        size = self._setting.driver.size
        if self._op == "scatter" and self._setting.driver.rank:
            return None
        return [self._arrays.of(self._sizes.part(content, each)) for each in range(size)]


def sizes_of(setting: Setting, op: str) -> Sizes:
    """Return how long arrays are: of a reduce_scatter the whole is the message, elsewhere each part."""
    size = setting.driver.size
    count = setting.point.nbytes // itemsize_of(setting.point.dtype)
    if op == "reduce_scatter":
        return Sizes(count, tuple(count // size + (rank < count % size) for rank in range(size)))
    return Sizes(count, (count,) * size)


def itemsize_of(dtype: str) -> int:
    """Return the bytes of an element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def compare(found: NDArray[Any], wanted: NDArray[Any], who: str) -> None:
    """Raise WrongResult where two arrays differ: names the first place."""
    if found.shape != wanted.shape:
        raise WrongResult(f"{who} gave {found.size} elements instead of {wanted.size}")
    wrong = np.flatnonzero(found != wanted)
    if wrong.size:
        place = int(wrong[0])
        raise WrongResult(
            f"{who} gave {found[place]} instead of {wanted[place]} at element {place} of {wanted.size}; "
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
    """Return a benchmark that is about a collective; options: further ones of `Benchmark`."""
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
    _collective("all_gather", "Allgather", ["allgather"], "every rank gets the messages of all"),
    _collective("all_gather", "Allgatherv", ["allgatherv"], "the same, with a count for each rank", True),
    _collective("all_reduce", "Allreduce", ["allreduce"], "every rank gets the reduction of all messages"),
    _collective("all_to_all", "Alltoall", ["alltoall"], "every rank has a message for every rank"),
    _collective("all_to_all", "Alltoallv", ["alltoallv"], "the same, with a count for each pair", True),
    _collective("barrier", "Barrier", [], "nobody goes on before all have come"),
    _collective("broadcast", "Bcast", ["bcast"], "every rank gets the root's message"),
    _collective("gather", "Gather", ["gather"], "the root gets the messages of all"),
    _collective("gather", "Gatherv", ["gatherv"], "the same, with a count for each rank", True),
    _collective("reduce", "Reduce", ["reduce"], "the root gets the reduction of all messages"),
    _collective("reduce_scatter", "Reduce_scatter", [], "every rank gets its part of the reduction of all messages"),
    _collective("scan", "Scan", ["scan"], "every rank gets the reduction of its message and those of lower ranks"),
    _collective("scatter", "Scatter", ["scatter"], "every rank gets its message of the root's"),
    _collective("scatter", "Scatterv", ["scatterv"], "the same, with a count for each rank", True),
)
