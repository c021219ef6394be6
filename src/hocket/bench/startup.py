"""The start-up benchmark: the time until all ranks of a new job have communicated and ended.

It starts ``python -m hocket.bench.startup TARGET``, which opens the library, waits for all ranks, and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

from hocket.bench.launchers import LAUNCHERS
from hocket.bench.targets import Target, parse_targets
from hocket.errors import LaunchError
from hocket.measure import Contender, Key, SeriesMeasurement, StopRule, Team, measure_series
from hocket.measure.jobs import RunningJob
from hocket.measure.rounds import OnRound

_TIMEOUT_S = 120.0


def measure_startup(
    keys: Mapping[Key, Target], num_ranks: int, rule: StopRule, on_round: OnRound | None = None
) -> SeriesMeasurement:
    """Start and end jobs of each library, one after the other, in random order.

    Args:
        keys: libraries by the keys of their contenders.
        num_ranks: number of ranks of each job.
        rule: rule that ends the measurement.
        on_round: progress callback, as in `measure_series`.

    Raises:
        LaunchError: a job fails, or does not end within 120 s; shows its output.
    """
    contenders = [Contender.of_call(*key, partial(_start, each, num_ranks)) for key, each in keys.items()]
    return measure_series(Team(contenders), rule, on_round=on_round)


def _start(target: Target, num_ranks: int) -> None:
    argv = [sys.executable, "-m", "hocket.bench.startup", target.name]
    job = RunningJob(LAUNCHERS[target.launcher](argv, num_ranks, target.launcher), "startup")
    try:
        status = job.finish(_TIMEOUT_S)
        if status != 0:
            end = f"did not end within {_TIMEOUT_S:g} s" if status is None else f"ended with exit code {status}"
            raise LaunchError(f"{target.name} {end}\n{job.output()}")
    finally:
        job.close()


def main(name: str) -> None:
    """Open a library, wait for all ranks, and close it."""
    from hocket.bench.rank import opened

    with opened(parse_targets(name)) as drivers:
        for driver in drivers.values():
            driver.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
