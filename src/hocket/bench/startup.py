"""How long it takes until all ranks of a job can communicate, and have left again: whole processes, started anew.

``python -m hocket.bench.startup TARGET`` is what is started: it opens the library, waits for all ranks, and leaves.
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
        keys: names of what is measured, and the libraries.
        num_ranks: of each job.
        rule: when there is enough.
        on_round: as of `measure_series`.

    Raises:
        LaunchError: one fails, or does not end; shows what it wrote.
    """
    contenders = [Contender.of_call(*key, partial(_start, each, num_ranks)) for key, each in keys.items()]
    return measure_series(Team(contenders), rule, on_round=on_round)


def _start(target: Target, num_ranks: int) -> None:
    argv = [sys.executable, "-m", "hocket.bench.startup", target.name]
    running = RunningJob(LAUNCHERS[target.launcher](argv, num_ranks, target.launcher), "startup")
    try:
        status = running.finish(_TIMEOUT_S)
        if status != 0:
            raise LaunchError(f"{target.name} ended with {status}\n{running.output()}")
    finally:
        running.close()


def main(name: str) -> None:
    """Open a library, wait for all ranks, leave."""
    from hocket.bench.rank import opened

    with opened(parse_targets(name)) as drivers:
        for driver in drivers.values():
            driver.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
