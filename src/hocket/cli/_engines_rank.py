"""One rank of `hocket bench engines`: ``python -m hocket.cli._engines_rank OPTIONS``, with its options as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from hocket.bench.engine_times import EngineTime, EngineTimes, to_text
from hocket.bench.gradient_shapes import MODELS
from hocket.cli._engine_names import read_engine
from hocket.measure import Contender, Measurement, Settings, Team, measure, median_interval, progress
from hocket.measure.loops import looped
from hocket.measure.team import gather_over
from hocket.session import init

_LEAST_ROUNDS = 6


def main(options: Mapping[str, Any]) -> None:
    """Measure the engines; rank 0 writes the results."""
    from hocket.train.engines.timing import EngineStep

    comm = init(backends=options["backends"], timeout=300.0)
    steps: list[EngineStep] = []
    contenders = []
    try:
        for model in options["models"]:
            for text in options["engines"]:
                steps.append(EngineStep(read_engine(text), comm, MODELS[model]()))
                for batch in options["batches"]:
                    run = steps[-1].runner(batch * options["compute_ms"] / 1000)
                    contenders.append(Contender(_case(model, batch), text, looped(run)))
        team = Team(contenders, comm.rank, comm.barrier, gather_over(comm.all_gather, comm.size))
        settings = Settings(
            min_rounds=9, core_rounds=0, time_limit_s=options["budget_s"], again=False, seed=options["seed"]
        )
        with progress("gradient engines", shown=comm.rank == 0) as on_round:
            measurement = measure(team, settings, on_round=on_round)
        if comm.rank == 0:
            rows = _rows(measurement, options, comm.size, comm.num_hosts)
            times = EngineTimes(rows, measurement.core_factor, measurement.foreign_busy)
            Path(options["output"]).write_text(to_text(times))
    finally:
        for step in reversed(steps):
            step.close()
    comm.finalize()


def _case(model: str, batch: int) -> str:
    return f"{model}, {batch} samples"


def _rows(
    measurement: Measurement, options: Mapping[str, Any], num_ranks: int, num_hosts: int
) -> tuple[EngineTime, ...]:
    rows = []
    for model in options["models"]:
        nbytes = 4 * sum(prod(shape) for shape in MODELS[model]().values())
        for batch in options["batches"]:
            for text in options["engines"]:
                times = [1e3 * each for each in measurement.times(_case(model, batch), text)]
                # Fewer rounds, where the budget was too small, have no interval of 95 %.
                low, high = median_interval(times) if len(times) >= _LEAST_ROUNDS else (min(times), max(times))
                rows.append(
                    EngineTime(
                        model, text, batch, num_ranks, num_hosts, nbytes, batch * options["compute_ms"], median(times),
                        low, high, False,
                    )
                )  # fmt: skip
    return tuple(rows)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
