"""The selftest: inject faults into a library, and check that the suite detects them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hocket.bench.choice import choose_points
from hocket.bench.comparison import compare
from hocket.bench.run import Run, run_points
from hocket.bench.targets import parse_targets
from hocket.errors import LaunchError
from hocket.measure import StopRule
from hocket.measure.machine import usable_cpus

_DELAY_US = 2000
_SIZES = (64 << 10, 1 << 20)
_LAUNCHES = 9


@dataclass(frozen=True)
class EqualsTrial:
    """The result of one trial.

    Args:
        fault: the injected fault and the expected finding.
        is_seen: whether the suite reported the expected finding.
        words: the actual finding.

    Examples:
        >>> from hocket.bench import Trial
        >>> trial = Trial("everything takes 5 % longer: slower", is_seen=True, words="1.052 times as long")
        >>> trial.is_seen
        True
    """

    fault: str
    is_seen: bool
    words: str


def run_trials(library: str, num_ranks: int, budget_s: float, seed: int) -> Iterator[EqualsTrial]:
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
    brief = StopRule(precision=0.05, time_limit_s=5.0, seed=seed)
    yield _corrupted(library, num_ranks, brief)
    fault = f"the last rank begins {_DELAY_US} us late: the time is the latest rank's, not the mean"
    late = _run(f"{library}!delay={_DELAY_US}us", ["broadcast"], num_ranks, brief).results[0]
    yield EqualsTrial(fault, late.value >= _DELAY_US, f"{late.value:.0f} us")
    long = StopRule(precision=0.002, max_samples=400, time_limit_s=budget_s, seed=seed)
    is_slower, words = _compared(f"{library}!slow=0%", f"{library}!slow=5%", num_ranks, long)
    yield EqualsTrial("everything takes 5 % longer: slower", is_slower, words)
    is_slower, words = _compared(library, f"{library}!again", num_ranks, long)
    yield EqualsTrial("nothing takes longer: not slower", not is_slower, words)
    num_crowded = usable_cpus() + 1
    warnings = [each for each in _run(library, ["barrier"], num_crowded, brief).warnings if "share" in each]
    fault = f"{num_crowded} ranks on {usable_cpus()} CPUs: a warning"
    yield EqualsTrial(fault, bool(warnings), "".join(warnings) or "none")


def _corrupted(library: str, num_ranks: int, rule: StopRule) -> EqualsTrial:
    fault = "one byte of a result is wrong on one rank: nothing is timed"
    try:
        _run(f"{library}!corrupt", ["all_gather"], num_ranks, rule)
    except LaunchError as error:
        _, is_seen, rest = str(error).partition("WrongResult:")
        words = rest.partition("\n")[0].strip() if is_seen else "the job failed for another reason"
        return EqualsTrial(fault, bool(is_seen), words)
    return EqualsTrial(fault, False, "it was timed")


def _compared(first: str, second: str, num_ranks: int, rule: StopRule) -> tuple[bool, str]:
    """Return whether the second library is slower, and the ratios in words."""
    results = _run(f"{first},{second}", ["all_reduce"], num_ranks, rule, _LAUNCHES).results
    both = ([each for each in results if each.point.target == name] for name in (first, second))
    found = compare(*both, least=0.02, paired=True)
    rows = (f"{row.case}: {row.ratio:.3f} times as long, {row.verdict}" for row in found.rows)
    return found.is_slower, ", ".join(rows)


def _run(libraries: str, names: Sequence[str], num_ranks: int, rule: StopRule, num_launches: int = 1) -> Run:
    targets = parse_targets(libraries)
    points = choose_points(names, targets, sizes=_SIZES)
    return run_points(points, targets, num_ranks, rule, num_launches=num_launches)
