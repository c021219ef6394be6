"""The benchmarks, by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import hocket.bench.families as folder
from hocket.bench.buffers.base import BufferKind
from hocket.bench.drivers.base import Call, Driver
from hocket.bench.point import Point
from hocket.discovery import by_name, declared, takes
from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import unknown

UNITS = ("us", "MB/s")


class Prepared(ABC):
    """A benchmark of one point, set up on this rank.

    Attributes:
        once: runs one iteration, for calls that are timed one by one; None if only loops make sense.
        parts: loops that are timed beside it in the same rounds, by name.
        shares: loops that return the seconds of a part of their work, timed in the same rounds, by name.

    Examples:
        >>> from hocket.bench import Prepared
        >>> class Nothing(Prepared):
        ...     def run(self, iterations):
        ...         for _ in range(iterations):
        ...             pass
        ...     def check(self, turn):
        ...         pass
        >>> Nothing().run(10)
    """

    once: Call | None = None
    parts: Mapping[str, Callable[[int], object]] = MappingProxyType({})
    shares: Mapping[str, Callable[[int], float]] = MappingProxyType({})

    @abstractmethod
    def run(self, iterations: int) -> object:
        """Run `iterations` iterations, one after the other."""

    @abstractmethod
    def check(self, turn: int) -> None:
        """Run once with known content and check the result; all ranks call it.

        Args:
            turn: number that selects the content.

        Raises:
            WrongResult: the result is wrong.
        """


@dataclass(frozen=True)
class Setting:
    """The arguments with which a benchmark is set up on one rank.

    Args:
        point: the point to measure.
        driver: the library.
        kind: kind of memory.
        arrays: arrays that the benchmarks of this process share.

    Examples:
        >>> from hocket.bench import Point, Setting, find_benchmark, opened, parse_targets
        >>> from hocket.bench.buffers.registry import find_kind
        >>> with opened(parse_targets("shm")) as drivers:
        ...     setting = Setting(Point("barrier", "shm", 0), drivers["shm"], find_kind("numpy"))
        ...     find_benchmark("barrier").make(setting).check(0)
    """

    point: Point
    driver: Driver
    kind: BufferKind
    arrays: dict[tuple[object, ...], Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """A kind of measurement.

    Args:
        name: name of the benchmark.
        title: title above the tables of OSU's benchmarks.
        unit: unit of the result: "us" or "MB/s".
        make: function that sets it up on a rank.
        summary: description in one line.
        aliases: names in OMB and OMB-Py, without "osu_".
        family: group in lists.
        op: the collective that it measures.
        reduces: whether it reduces, and so has typed elements.
        has_sizes: whether it has message sizes.
        least_nbytes, most_nbytes: default range of sizes.
        least_ranks: minimum number of ranks.
        needs_pairs: whether all ranks communicate in pairs, so that their number must be even.
        messages: messages of one iteration, by which its time is divided; with a window, per message in flight.
        has_window: whether `Point.window` messages are in flight.
        is_windowed: whether its calls are timed one by one, and all ranks begin each at the same instant.
        takes_objects: whether it supports objects beside memory.
        has_places: whether it has forms in place and out of place.

    Examples:
        >>> from hocket.bench import Benchmark, Point
        >>> benchmark = Benchmark("ping", "Ping", "us", lambda setting: None, "a message there and back", messages=2)
        >>> benchmark.value(8e-6, Point("ping", "shm", 16), num_ranks=2)
        4.0
    """

    name: str
    title: str
    unit: str
    make: Callable[[Setting], Prepared]
    summary: str
    aliases: tuple[str, ...] = ()
    family: str = "collective"
    op: str = ""
    reduces: bool = False
    has_sizes: bool = True
    least_nbytes: int = 1
    most_nbytes: int = 1 << 20
    least_ranks: int = 1
    needs_pairs: bool = False
    messages: int = 1
    has_window: bool = False
    is_windowed: bool = False
    takes_objects: bool = True
    has_places: bool = False

    def __post_init__(self) -> None:
        if not takes(self.make, "setting"):
            raise InvalidType(f"make of benchmark {self.name!r} must be a function of one Setting, not {self.make!r}")
        if self.unit not in UNITS:
            raise InvalidArgument(f"unit of benchmark {self.name!r} must be {' or '.join(UNITS)}, not {self.unit!r}")

    def obstacle(self, point: Point) -> str:
        """Return why no library can measure a point, or ""."""
        if point.has_objects and not self.takes_objects:
            return f"{self.name} needs memory, not objects (API {point.api})"
        if point.place and not self.has_places:
            return f"{self.name} has only one form: omit place {point.place!r}"
        if point.place and point.has_objects:
            return f"objects (API {point.api}) have no forms in place or out of place: omit place {point.place!r}"
        return ""

    def num_messages(self, point: Point) -> int:
        """Return the number of messages, or operations, of an iteration."""
        return self.messages * (point.window if self.has_window else 1)

    def value(self, seconds: float, point: Point, num_ranks: int) -> float:
        """Convert the seconds of an iteration into `unit`: microseconds of an operation, or 10^6 bytes per second.

        If all ranks communicate in pairs, the bandwidth is that of all pairs together.
        """
        if self.unit == "us":
            return 1e6 * seconds / self.num_messages(point)
        num_pairs = num_ranks // 2 if self.needs_pairs else 1
        return point.nbytes * self.num_messages(point) * num_pairs / seconds / 1e6


@lru_cache
def benchmarks() -> Mapping[str, Benchmark]:
    """Return all benchmarks, by name.

    Examples:
        >>> from hocket.bench import benchmarks
        >>> benchmarks()["all_reduce"].family
        'collective'
    """
    modules = declared(folder, "BENCHMARKS", "a tuple of Benchmark", _are_benchmarks)
    found = [(each.name, module, each) for module, several in modules for each in several]
    aliases = [(alias, module, each) for _, module, each in found for alias in sorted({*each.aliases} - {each.name})]
    by_name("benchmark or alias of one", [*found, *aliases])
    found.sort(key=lambda entry: (entry[2].family != "point to point", entry[2].family))
    return {name: each for name, _, each in found}


def _are_benchmarks(value: object) -> bool:
    return isinstance(value, tuple) and value != () and all(isinstance(each, Benchmark) for each in value)


OMB_PY = (
    "latency", "bandwidth", "bidirectional_bandwidth", "multi_latency", "all_gather", "all_gatherv", "all_reduce",
    "all_to_all", "all_to_allv", "barrier", "broadcast", "gather", "gatherv", "reduce_scatter", "reduce", "scatter",
    "scatterv",
)  # fmt: skip
"""The benchmarks that OMB-Py has (OMB 7.4, python/)."""


def find_group(name: str) -> list[Benchmark]:
    """Return the benchmarks of a group, or the one benchmark of that name.

    Groups are "all" (without those that start whole jobs), "omb-py", and families, with dashes for blanks.

    Raises:
        InvalidArgument: the name is unknown; lists the known ones.
    """
    found = benchmarks()
    groups = {each.family.replace(" ", "-"): each.family for each in found.values()}
    if name in groups:
        return [each for each in found.values() if each.family == groups[name]]
    if name == "omb-py":
        return [found[each] for each in OMB_PY]
    return [each for each in found.values() if each.family != "whole job"] if name == "all" else [find_benchmark(name)]


def find_benchmark(name: str) -> Benchmark:
    """Return a benchmark by its name, or by its name in OMB or OMB-Py.

    Raises:
        InvalidArgument: the name is unknown; lists the known ones.

    Examples:
        >>> from hocket.bench import find_benchmark
        >>> find_benchmark("osu_allreduce").name
        'all_reduce'
    """
    short = name.rpartition("/")[2].removeprefix("osu_")
    for each in benchmarks().values():
        if short == each.name or short in each.aliases:
            return each
    raise InvalidArgument(unknown("benchmark", name, benchmarks()))
