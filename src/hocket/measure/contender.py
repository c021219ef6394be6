"""Contenders: named callables that are timed, and how one sample is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hocket import _native
from hocket.measure.loops import looped


class Key(NamedTuple):
    """Names one contender: contenders of the same case are compared with each other.

    Examples:
        >>> key = hk.measure.Key("16 B", "shm")
        >>> key.case, key.name
        ('16 B', 'shm')
    """

    case: str
    name: str


@dataclass(frozen=True)
class Contender:
    """One of the callables that are compared in a case; set it up before you make the contender.

    Args:
        case: The task, for example "16 B".
        name: The library and form, for example "mpich Allreduce(IN_PLACE, [x, FLOAT])".
        run: Runs as many iterations as its argument says. It contains the loop, so that short operations are timed
            without one more Python call each.
        once: Runs one iteration, for calls that are timed one by one (`hocket.measure.windows`); None: only loops are
            timed.
        keeps_time: `run` returns the seconds that count, instead of being timed from outside.

    Examples:
        >>> def run(iterations):
        ...     for _ in range(iterations):
        ...         sum([1, 2])
        >>> hk.measure.Contender("2 values", "sum", run).key
        Key(case='2 values', name='sum')
        >>> hk.measure.Contender.of_call("2 values", "max", lambda: max(1, 2)).key
        Key(case='2 values', name='max')
    """

    case: str
    name: str
    run: Callable[[int], object]
    once: Callable[[], object] | None = None
    keeps_time: bool = False

    @classmethod
    def of_call(cls, case: str, name: str, call: Callable[[], object]) -> Contender:
        """Make a contender from a callable without arguments; each iteration costs one more plain call."""
        return cls(case, name, looped(call))

    @property
    def key(self) -> Key:
        """The case and the name."""
        return Key(self.case, self.name)

    @property
    def region_name(self) -> str:
        """Name of the recorded region of each sample; see `hocket.observe.region`."""
        return f"measure {self.name}, {self.case}"


def num_warm_up(iterations: int) -> int:
    """Return the number of warm-up iterations before a sample of `iterations`."""
    return max(1, iterations // 20)


def sample(contender: Contender, iterations: int, barrier: Callable[[], object], clock: Callable[[], float]) -> float:
    """Time one sample on this rank.

    A twentieth of the iterations, at least one, runs first as warm-up: it fills caches and synchronises the ranks more
    closely than a barrier, whose wake-ups take tens of microseconds.

    Returns:
        Seconds for all iterations on this rank.
    """
    with _native.region(contender.region_name):
        barrier()
        contender.run(num_warm_up(iterations))
        start = clock()
        seconds = contender.run(iterations)
        end = clock()
    return float(seconds) if contender.keeps_time else end - start  # type: ignore[arg-type]
