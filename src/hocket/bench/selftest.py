"""The selftest: inject faults into a library, and check that the suite detects them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hocket.bench.choice import choose_points
from hocket.bench.comparison import compare
from hocket.bench.run import Run, oversubscription_warning, run_points
from hocket.bench.targets import parse_targets
from hocket.errors import LaunchError
from hocket.measure import StopRule
from hocket.measure.machine import usable_cpus

_DELAY_US = 2000
_SIZES = (64 << 10, 1 << 20)
_LAUNCHES = 9


@dataclass(frozen=True)
class FaultTrial:
    """The result of one trial.

    Args:
        fault: the injected fault and the expected finding.
        is_seen: whether the suite reported the expected finding.
        words: the actual finding.

    Examples:
        >>> from hocket.bench import Trial
        >>> trial = Trial("all operations take 5 % longer: slower", is_seen=True, words="1.052 times as long")
        >>> trial.is_seen
        True
    """

    fault: str
    is_seen: bool
    words: str


def run_trials(library: str, num_ranks: int, budget_s: float, seed: int) -> Iterator[FaultTrial]:
    """Run the trials of the selftest one after the other, and yield their results.

    Args:
        library: library that gets the faults; its operations must work on memory.
        num_ranks: number of ranks, 2 or more.
        budget_s: time limit of each comparison in seconds.
        seed: seed of the order of measurements.

    Examples:
        >>> from hocket.bench import run_trials
        >>> trials = run_trials("shm", num_ranks=2, budget_s=10.0, seed=1)  # each trial runs when it is requested
        >>> trials.close()
    """
    short_rule = StopRule(precision=0.05, time_limit_s=5.0, seed=seed)
    yield _try_corruption(library, num_ranks, short_rule)
    fault = f"the last rank begins {_DELAY_US} us late: the time is that of the latest rank, not the mean"
    late = _run(f"{library}!delay={_DELAY_US}us", ["broadcast"], num_ranks, short_rule).results[0]
    yield FaultTrial(fault, late.value >= _DELAY_US, f"{late.value:.0f} us")
    long_rule = StopRule(precision=0.002, max_samples=400, time_limit_s=budget_s, seed=seed)
    is_slower, words = _compare_targets(f"{library}!slow=0%", f"{library}!slow=5%", num_ranks, long_rule)
    yield FaultTrial("all operations take 5 % longer: slower", is_slower, words)
    is_slower, words = _compare_targets(library, f"{library}!again", num_ranks, long_rule)
    yield FaultTrial("no operation takes longer: not slower", not is_slower, words)
    num_oversubscribed = usable_cpus() + 1
    expected = oversubscription_warning(num_oversubscribed, usable_cpus())
    warnings = _run(library, ["barrier"], num_oversubscribed, short_rule).warnings
    fault = f"{num_oversubscribed} ranks on {usable_cpus()} CPUs: a warning"
    yield FaultTrial(fault, expected in warnings, expected if expected in warnings else "none")


def _try_corruption(library: str, num_ranks: int, rule: StopRule) -> FaultTrial:
    fault = "one byte of a result is wrong on one rank: no operation is timed"
    try:
        _run(f"{library}!corrupt", ["all_gather"], num_ranks, rule)
    except LaunchError as error:
        _, is_seen, rest = str(error).partition("WrongResult:")
        words = rest.partition("\n")[0].strip() if is_seen else "the job failed for another reason"
        return FaultTrial(fault, bool(is_seen), words)
    return FaultTrial(fault, False, "the operation was timed")


def _compare_targets(first: str, second: str, num_ranks: int, rule: StopRule) -> tuple[bool, str]:
    """Return whether the second library is slower, and the ratios in words."""
    results = _run(f"{first},{second}", ["all_reduce"], num_ranks, rule, _LAUNCHES).results
    pair = ([each for each in results if each.point.target == name] for name in (first, second))
    found = compare(*pair, least=0.02, paired=True)
    rows = (f"{row.case}: {row.ratio:.3f} times as long, {row.verdict}" for row in found.rows)
    return found.is_slower, ", ".join(rows)


def _run(libraries: str, names: Sequence[str], num_ranks: int, rule: StopRule, num_launches: int = 1) -> Run:
    targets = parse_targets(libraries)
    points = choose_points(names, targets, sizes=_SIZES)
    return run_points(points, targets, num_ranks, rule, num_launches=num_launches)
