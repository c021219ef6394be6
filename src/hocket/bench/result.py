"""Results: measured values of points, which are stored, written and compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from hocket.bench.point import PLACES, Point
from hocket.bench.registry import Benchmark, find_benchmark
from hocket.errors import InvalidArgument
from hocket.measure import Key, Series
from hocket.measure.statistics import MIN_VALUES, interval_of
from hocket.typed_json import record_from

_BUS_FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "gather": 1, "scatter": 1}
"""How often the busiest link carries what n - 1 of n ranks have: nccl-tests, doc/PERFORMANCE.md."""
ALONE, PRODUCT, BEGIN = PARTS = ("alone", "product", "begin")
"""What is timed beside a non-blocking operation with a matrix product: either by itself, and of both together how long
the beginning of the operation takes."""
_OF_ALL = ("all_gather", "all_to_all", "gather", "scatter")


@dataclass(frozen=True)
class Result:
    """The measured values of one point.

    Args:
        point: the point.
        num_ranks: number of ranks.
        samples, calls, num_late, iterations: as in `hocket.measure.Series`; all points of a case share their rounds.
        parts: seconds of the parts that were timed in the same rounds, by name.
        launches: number of samples of each launch of the job, in order.

    Examples:
        >>> from hocket.bench import Point, Result
        >>> result = Result(Point("barrier", "shm", 0), 2, (2e-6,) * 9, calls=(), num_late=0, iterations=100)
        >>> result.value, result.unit, result.num_timed
        (2.0, 'us', 900)
        >>> Result.from_json(result.to_json()) == result
        True
    """

    point: Point
    num_ranks: int
    samples: tuple[float, ...]
    calls: tuple[tuple[float, ...], ...]
    num_late: int
    iterations: int
    parts: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    launches: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, point: Point, num_ranks: int, series: Mapping[Key, Series], launches: Sequence[int] | None = None
    ) -> Result:
        """Make a result from the series of `measure_series`."""
        own = series[point.key]
        parts = {name: series[key] for name in PARTS if (key := point.part_key(name)) in series}
        times = {name: tuple(each.samples) for name, each in parts.items()}
        return cls(
            point,
            num_ranks,
            tuple(own.samples),
            tuple(own.calls),
            own.num_late,
            own.iterations,
            times,
            tuple(launches or ()),
        )

    @property
    def overlap(self) -> float | None:
        """Percent of a non-blocking operation's time that a matrix product hides, as OMB defines it, from 0 to 100.

        The median over rounds; None for other operations.
        """
        if not self.parts:
            return None
        rounds = zip(self.samples, self.parts[PRODUCT], self.parts[ALONE], strict=True)
        return median(min(100.0, max(0.0, 100 - 100 * (both - product) / alone)) for both, product, alone in rounds)

    @property
    def num_launches(self) -> int:
        """Number of launches of the job."""
        return max(1, len(self.launches))

    def over_launches(self, values: Sequence[float]) -> Sequence[float]:
        """Return the median of each launch of values that belong to the samples.

        With too few launches for an interval, return the values themselves.
        """
        if self.num_launches < MIN_VALUES:
            return values
        return [median(values[first:last]) for first, last in pairwise(accumulate(self.launches, initial=0))]

    @property
    def unit(self) -> str:
        """Unit of `value`: "us" or "MB/s"."""
        return self._benchmark.unit

    @property
    def value(self) -> float:
        """The median: microseconds of an operation, or 10^6 bytes per second."""
        return self.value_of(median(self.over_launches(self.samples)))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the median, in `unit`; None with too few samples.

        It is taken over launches if there are 6 or more, otherwise over samples.
        """
        values = self.over_launches(self.samples)
        interval = interval_of(values)
        if interval is None:
            return None
        low, high = sorted(map(self.value_of, interval))
        return low, high

    @property
    def precision(self) -> float | None:
        """Half width of the interval relative to the value; None with too few samples."""
        interval = self.interval
        return None if interval is None else (interval[1] - interval[0]) / 2 / self.value

    def value_of(self, seconds: float) -> float:
        """Convert the seconds of an iteration into `unit`."""
        return self._benchmark.value(seconds, self.point, self.num_ranks)

    def percentile(self, percent: float) -> float:
        """Return a percentile of the operations' times in microseconds: of single calls if timed, otherwise of samples.

        Raises:
            InvalidArgument: percent is not between 0 and 100.
        """
        if not 0 <= percent <= 100:
            raise InvalidArgument(f"a percentile must be from 0 to 100, not {percent}")
        seconds = sorted(map(max, self.calls)) if self.calls else sorted(self.samples)
        rank = max(1, math.ceil(percent / 100 * len(seconds)))  # nearest rank
        return 1e6 * seconds[rank - 1] / self.operations

    @property
    def time_us(self) -> float:
        """The median time of one operation in microseconds, whatever the unit."""
        return 1e6 * median(self.over_launches(self.samples)) / self.operations

    @property
    def total_nbytes(self) -> int:
        """Bytes of a rank's larger array, as nccl-tests counts them."""
        return (self.num_ranks if self._benchmark.op in _OF_ALL else 1) * self.point.nbytes

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth in 10^9 bytes per second, as in nccl-tests: a rank's larger array divided by the time.

        For a non-blocking operation, the time is that of the operation alone.
        """
        seconds = median(self.parts[ALONE]) if self.parts else median(self.over_launches(self.samples))
        return self.total_nbytes * self.operations / seconds / 1e9

    @property
    def busbw(self) -> float:
        """Bus bandwidth in 10^9 bytes per second: `algbw` scaled to the traffic of the busiest link."""
        factor = _BUS_FACTORS.get(self._benchmark.op)
        return self.algbw * (factor * (self.num_ranks - 1) / self.num_ranks if factor else 1.0)

    def to_json(self, raw: bool = False) -> dict[str, Any]:
        """Return plain values; with `raw`, also all calls."""
        found: dict[str, Any] = {
            **asdict(self.point),
            "num_ranks": self.num_ranks,
            "value": self.value,
            "unit": self.unit,
            "interval": self.interval,
            "min_us": self.percentile(0),
            "max_us": self.percentile(100),
            **{f"p{percent}_us": self.percentile(percent) for percent in (50, 95, 99)},
            "num_samples": len(self.samples),
            "num_calls": len(self.calls),
            "num_late": self.num_late,
            "iterations": self.iterations,
            "overlap": self.overlap,
            "samples_s": list(self.samples),
            "launches": list(self.launches),
            "parts_s": {name: list(each) for name, each in self.parts.items()},
        }
        if raw:
            found["calls_s"] = list(self.calls)
        return found

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Result:
        """Return the result that `to_json` returned as plain values.

        Raises:
            InvalidArgument: the values are not those of a result.
        """
        try:
            fields = [each for each in Point.__dataclass_fields__ if each != "place" or each in given]
            point = record_from(Point, {"place": "", **{each: given[each] for each in fields}})
            found = cls(
                point,
                _count(given, "num_ranks", 1),
                _times(given["samples_s"]),
                tuple(map(_times, given.get("calls_s", ()))),
                _count(given, "num_late", 0),
                _count(given, "iterations", 1),
                {str(name): _times(each) for name, each in given["parts_s"].items()},
                tuple(map(int, given.get("launches", ()))),
            )
            find_benchmark(point.benchmark)
            if point.place not in ("", *PLACES):
                raise ValueError(f"place {point.place!r}")
            if point.nbytes < 0 or point.window < 1:
                raise ValueError(f"nbytes {point.nbytes} and window {point.window}")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidArgument(f"not a result of hocket bench: {error!r}") from error
        if not found.samples or (
            found.launches and (sum(found.launches) != len(found.samples) or min(found.launches) < 1)
        ):
            raise InvalidArgument(
                f"{' '.join(point.key)} has {len(found.samples)} samples of launches {found.launches}"
            )
        if found.parts and any(len(found.parts.get(name, ())) != len(found.samples) for name in (ALONE, PRODUCT)):
            raise InvalidArgument(f"{' '.join(point.key)} must have as many {ALONE} and {PRODUCT} times as samples")
        return found

    @property
    def operations(self) -> int:
        """Number of messages, or operations, of an iteration."""
        return self._benchmark.num_messages(self.point)

    @property
    def num_timed(self) -> int:
        """Number of timed operations: calls, or iterations of loops."""
        return len(self.calls) or len(self.samples) * self.iterations

    @property
    def _benchmark(self) -> Benchmark:
        return find_benchmark(self.point.benchmark)


def _count(given: Mapping[str, Any], name: str, least: int) -> int:
    """Return a number of a result. Raises TypeError for other types, ValueError if it is less than `least`."""
    value = given[name]
    if type(value) is not int:
        raise TypeError(f"{name} must be a whole number, not {value!r:.80}")
    if value < least:
        raise ValueError(f"{name} must be {least} or more, not {value}")
    return value


def _times(values: Iterable[Any]) -> tuple[float, ...]:
    """Return seconds as numbers; ValueError if one is not finite, or is negative."""
    times = tuple(map(float, values))
    if not all(0 <= each < math.inf for each in times):
        raise ValueError("times must be finite and not negative")
    return times


def clearly_fastest(results: Collection[Result]) -> Result | None:
    """Return the fastest result if its interval overlaps no other one; otherwise, or for a single result, None.

    Args:
        results: results of one case by several ways.
    """
    if len(results) < 2:
        return None
    best = min(results, key=lambda each: each.time_us)
    intervals = [each.interval for each in results if each is not best]
    if best.interval is None:
        return None
    low, high = best.interval
    apart = (each is not None and (high < each[0] or each[1] < low) for each in intervals)
    return best if all(apart) else None


def format_value(value: float) -> str:
    """Format a value with four digits, without an exponent."""
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"
