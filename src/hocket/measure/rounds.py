"""The round loop: calibrate, then time every contender once per round in random order, until the settings are met."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from hocket.errors import InvalidArgument
from hocket.measure.contender import Key
from hocket.measure.core_factor import CoreProbe
from hocket.measure.machine import foreign_busy, usage
from hocket.measure.runner import Runner

AGAIN = " (again)"  # suffix of the second name under which a case's first contender runs: the A/A test
_MAX_ITERATIONS = 10**9


class OnRound(Protocol):
    """A callback for progress: items done, items in all, the current activity in a few words, and the seconds left
    (None: estimated from the pace so far)."""

    def __call__(self, done: int, total: int, state: str, left_s: float | None = None, /) -> object: ...


@dataclass(frozen=True)
class Settings:
    """How much to measure.

    Args:
        min_rounds: Rounds to take at least; 9 are needed to judge.
        min_sample_s: Seconds that one sample of a contender lasts at least.
        core_rounds: Rounds with full cores to take at least; 0 if no row needs full cores.
        time_limit_s: Seconds after which no new round starts, even if rounds are missing.
        full_core_factor: Core factor above which a round has full cores; None takes it from ranks and CPUs
            (`full_cores`).
        seed: Seed of the order within the rounds; the same on all ranks.
        again: Run the first contender of each case twice a round, the second time under its name + `AGAIN`.

    Examples:
        >>> settings = hk.measure.Settings(min_rounds=9, min_sample_s=0.01, time_limit_s=60)
        >>> settings.core_rounds
        9
    """

    min_rounds: int = 15
    min_sample_s: float = 0.02
    core_rounds: int = 9
    time_limit_s: float = 600.0
    full_core_factor: float | None = None
    seed: int = 20261121
    again: bool = True


@dataclass(frozen=True)
class Round:
    """One round: seconds per iteration of each contender (max over ranks), and the core factor at that time.

    Examples:
        >>> key = hk.measure.Key("16 B", "shm")
        >>> round_ = hk.measure.Round({key: 2e-6}, core_factor=1.9)
        >>> round_.seconds[key]
        2e-06
    """

    seconds: Mapping[Key, float]
    core_factor: float


@dataclass(frozen=True)
class Measurement:
    """All rounds of a measurement.

    Args:
        rounds: The rounds in the order of time.
        iterations: Iterations per sample, of each contender.
        num_ranks: Number of ranks.
        foreign_busy: Share of the CPU time, 0 to 1, that other programs took meanwhile.
        full_cores: The core factor above which a round counts as one with full cores.

    Examples:
        >>> from hocket.measure import Key, Measurement, Round
        >>> key = Key("16 B", "shm")
        >>> rounds = (Round({key: 2e-6}, core_factor=1.9), Round({key: 3e-6}, core_factor=1.1))
        >>> measurement = Measurement(rounds, {key: 100}, num_ranks=2, foreign_busy=0.0, full_cores=1.7)
        >>> measurement.cases, measurement.times("16 B", "shm"), len(measurement.full_core_rounds)
        (['16 B'], [2e-06, 3e-06], 1)
    """

    rounds: tuple[Round, ...]
    iterations: Mapping[Key, int]
    num_ranks: int
    foreign_busy: float
    full_cores: float

    @property
    def cases(self) -> list[str]:
        """Each case once, in the order of its first contender."""
        return list(dict.fromkeys(key.case for key in self.iterations))

    def names(self, case: str) -> list[str]:
        """Return the names of all contenders of a case."""
        return [key.name for key in self.iterations if key.case == case]

    def times(self, case: str, name: str) -> list[float]:
        """Return the seconds per iteration of a contender, by round."""
        return [each.seconds[Key(case, name)] for each in self.rounds]

    @property
    def core_factor(self) -> float:
        """The median core factor of the rounds."""
        return median(round_.core_factor for round_ in self.rounds)

    @property
    def full_core_rounds(self) -> tuple[Round, ...]:
        """The rounds in which the ranks had full cores."""
        return tuple(round_ for round_ in self.rounds if round_.core_factor > self.full_cores)


def calibrate(runner: Runner, contender: Key, min_sample_s: float) -> int:
    """Return the number of iterations for a sample of `min_sample_s` seconds on the slowest rank.

    Raises:
        InvalidArgument: The contender takes no measurable time.

    Examples:
        >>> contender = hk.measure.Contender.of_call("16 B", "sum", lambda: sum([1, 2]))
        >>> hk.measure.calibrate(hk.measure.Team([contender]), contender.key, min_sample_s=1e-3) > 1
        True
    """
    iterations = 1
    runner.run(contender, iterations)  # first use: pages, lazy set-up
    while (seconds := max(runner.run(contender, iterations))) < min_sample_s:
        if iterations >= _MAX_ITERATIONS:
            raise InvalidArgument(f"{contender.name} ({contender.case}) takes no measurable time")
        growth = 1.1 * min_sample_s / seconds if seconds > 0 else math.inf
        iterations = math.ceil(iterations * min(max(growth, 1.1), 20.0))
    return iterations


def full_cores(num_ranks: int, num_cpus: int) -> float:
    """Return the core factor of ranks with one core each, less 15 %: 1.7 for two ranks on two CPUs, 0 for one rank."""
    return 0.85 * min(num_ranks, num_cpus) if num_ranks > 1 else 0.0


def measure(runner: Runner, settings: Settings | None = None, *, on_round: OnRound | None = None) -> Measurement:
    """Measure all contenders of a runner; on a `Team`, all ranks call it with the same settings.

    Args:
        runner: The processes with the contenders.
        settings: How much to measure; None: the defaults.
        on_round: Progress callback. It is called before each calibration and after each round, with the number of
            rounds that count and the number required; on a `Team`, on every rank.

    Raises:
        InvalidArgument: The runner has no contender, or a contender takes no measurable time.

    Examples:
        >>> from hocket.measure import Contender, Settings, Team
        >>> ours = Contender.of_call("2 values", "sum", lambda: sum([1, 2]))
        >>> theirs = Contender.of_call("2 values", "plus", lambda: 1 + 2)
        >>> settings = Settings(min_rounds=2, min_sample_s=1e-4, core_rounds=0, time_limit_s=1.0)
        >>> measurement = hk.measure.measure(Team([ours, theirs]), settings)
        >>> measurement.names("2 values"), len(measurement.rounds)
        (['sum', 'plus'], 2)
    """
    settings = settings or Settings()
    if not runner.contenders:
        raise InvalidArgument("the runner must have at least one contender, not 0")
    given = settings.full_core_factor
    threshold = full_cores(runner.num_ranks, runner.num_cpus) if given is None else given
    iterations = {}
    for key in runner.contenders:
        if on_round:
            on_round(0, settings.min_rounds, f"calibrating {key.case}, {key.name}")
        iterations[key] = calibrate(runner, key, settings.min_sample_s)
    order = random.Random(settings.seed)
    probe = CoreProbe(runner)
    rounds: list[Round] = []
    before = usage(runner.pids)
    started = time.monotonic()
    while True:
        rounds.append(Round(_one_round(runner, iterations, order, settings.again), probe.measure()))
        full = sum(round_.core_factor > threshold for round_ in rounds)
        done = min(len(rounds) / settings.min_rounds, full / settings.core_rounds if settings.core_rounds else 1.0)
        elapsed_s = time.monotonic() - started
        if on_round:
            state = f"core factor {rounds[-1].core_factor:.2f}"
            if settings.core_rounds:
                state += f", {full} rounds with full cores"
            left_s = elapsed_s * (1 / done - 1) if 0 < done < 1 else 0.0 if done else math.inf
            left_s = min(left_s, max(0.0, settings.time_limit_s - elapsed_s))
            on_round(min(settings.min_rounds, int(done * settings.min_rounds)), settings.min_rounds, state, left_s)
        if done >= 1.0 or runner.agree(elapsed_s) > settings.time_limit_s:
            break
    share = runner.agree(foreign_busy(before, usage(runner.pids)))
    return Measurement(tuple(rounds), iterations, runner.num_ranks, share, threshold)


def _one_round(runner: Runner, iterations: Mapping[Key, int], order: random.Random, again: bool) -> dict[Key, float]:
    """Time the cases in random order, and within a case its contenders in random order."""
    cases: dict[str, list[tuple[Key, Key]]] = {}  # name in the round, and contender
    for key in runner.contenders:
        of_case = cases.setdefault(key.case, [])
        if again and not of_case:
            of_case.append((Key(key.case, key.name + AGAIN), key))
        of_case.append((key, key))
    shuffled = list(cases.values())
    order.shuffle(shuffled)
    for of_case in shuffled:
        order.shuffle(of_case)
    pairs = (pair for of_case in shuffled for pair in of_case)
    return {name: max(runner.run(key, iterations[key])) / iterations[key] for name, key in pairs}
