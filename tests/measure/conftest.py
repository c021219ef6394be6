"""Ranks as threads on clocks of their own: what a test injects is all that takes time."""

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from hocket.measure import Contender, Measurement, Settings, Team, measure

from .meeting import Meeting, on_threads


class FakeRank:
    """A rank whose clock moves only when its contenders do."""

    def __init__(self, rank: int, seed: int = 1) -> None:
        self.rank = rank
        self.now = 0.0
        self._noise = random.Random(seed * 1000 + rank)

    def clock(self) -> float:
        return self.now

    def contender(self, name: str, seconds: float, noise: float = 0.0, case: str = "case") -> Contender:
        """Takes `seconds` an iteration, up to the share `noise` more in each sample."""

        def run(iterations: int) -> None:
            self.now += seconds * iterations * (1 + noise * self._noise.random())

        return Contender(case, name, run)


def measure_on_threads(
    num_ranks: int,
    contenders: Callable[[FakeRank], Sequence[Contender]],
    settings: Settings,
    kernel: Callable[[int, int], float] = lambda rank, call: 1.0,
) -> list[Measurement]:
    """Measures on `num_ranks` threads; `kernel(rank, call)` gives the seconds of the compute kernel."""
    meeting = Meeting(num_ranks)
    results: dict[int, Measurement] = {}
    errors: list[BaseException] = []

    def body(rank: int) -> None:
        fake = FakeRank(rank)
        calls = iter(range(10**9))
        try:
            team = Team(
                contenders(fake),
                rank,
                meeting.barrier.wait,
                partial(meeting.gather, rank),
                clock=fake.clock,
                kernel=lambda: kernel(rank, next(calls)),
                num_cpus=num_ranks,
            )
            results[rank] = measure(team, settings)
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    on_threads(num_ranks, body)
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return [results[rank] for rank in range(num_ranks)]


@pytest.fixture
def run_ranks():
    """`measure_on_threads`, for tests that inject delays."""
    return measure_on_threads
