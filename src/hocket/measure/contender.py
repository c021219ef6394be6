"""What is timed: a named callable, and how one sample of it is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

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
    """One of the things compared in a case; its set-up is done before it is made.

    Args:
        case: What is done, for example "16 B".
        name: Who does it and in which form, for example "mpich Allreduce(IN_PLACE, [x, FLOAT])".
        run: Does it as many times as its argument says; it owns the loop, so that cheap things are not timed
            through one more Python call.
        once: Does it once, for calls that are timed one by one (`hocket.measure.windows`); None: they never are.
        keeps_time: `run` returns the seconds of that part of its work that counts.

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
        """Makes a contender of a callable without arguments, at the cost of one plain call per iteration."""
        return cls(case, name, looped(call))

    @property
    def key(self) -> Key:
        """The pair that names it."""
        return Key(self.case, self.name)


def num_warm_up(iterations: int) -> int:
    """How many iterations run untimed before a sample of so many."""
    return max(1, iterations // 20)


def sample(contender: Contender, iterations: int, barrier: Callable[[], object], clock: Callable[[], float]) -> float:
    """Times one sample on this rank.

    A twentieth of the iterations (at least one) runs first, untimed: caches fill and the ranks fall into step, which
    the way out of a barrier (a wake-up of tens of microseconds) does not give.

    Returns:
        Seconds for all iterations on this rank.
    """
    barrier()
    contender.run(num_warm_up(iterations))
    start = clock()
    seconds = contender.run(iterations)
    return float(seconds) if contender.keeps_time else clock() - start  # type: ignore[arg-type]
