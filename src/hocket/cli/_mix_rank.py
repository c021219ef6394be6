"""One rank of `hocket tune compare`: ``python -m hocket.cli._mix_rank OPTIONS``, with its options as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from hocket.cli._tune_rank import communicator_over
from hocket.comm import Communicator
from hocket.measure import Comparison, Measurement, Settings, Team, judge, measure, progress
from hocket.measure.team import gather_over
from hocket.trace.traffic import Traffic
from hocket.tune.mix import COARSE, FINE, chosen, mix_contenders, predicted_seconds, sweep_of
from hocket.tune.sweep import measure_table
from hocket.tune.table import Table


def main(options: dict[str, Any]) -> None:
    """Measure a table, replay the traffic, and write the result on rank 0."""
    comm = communicator_over(options["backends"])
    traffics = [Traffic.load(path) for path in options["traffics"]]
    with progress("table", shown=comm.rank == 0) as on_round:
        table = measure_table(comm, sweep_of(traffics, time_limit_s=60.0), on_round=on_round)

    gather = gather_over(comm.all_gather, comm.size)
    team = Team(mix_contenders(comm, table, traffics), comm.rank, comm.barrier, gather)
    settings = Settings(min_rounds=options["rounds"], core_rounds=0, time_limit_s=120.0)
    with progress("replay", shown=comm.rank == 0) as on_round:
        measured = measure(team, settings, on_round=on_round)
    if comm.rank == 0:
        result = {
            "backends": dict(comm.backends),
            "traffics": [_result(comm, table, traffic, measured) for traffic in traffics],
            "core_factor": measured.core_factor,
            "foreign_busy": measured.foreign_busy,
        }
        Path(options["output"]).write_text(json.dumps(result))
    comm.barrier()
    comm.finalize()


def _result(comm: Communicator, table: Table, traffic: Traffic, measured: Measurement) -> dict[str, Any]:
    backends = list(comm.backends)
    variants = {
        name: {
            "seconds": median(measured.times(traffic.name, name)),
            "predicted_seconds": predicted_seconds(table, traffic, backends, name),
        }
        for name in (*backends, FINE, COARSE)
    }
    best = min(backends, key=lambda name: variants[name]["seconds"] or 0.0)
    row = judge(measured, Comparison(traffic.name, FINE, (best,)))
    return {
        "name": traffic.name,
        "source": traffic.source,
        "variants": variants,
        "best_single": best,
        "ratio": row.ratio,
        "interval": row.interval,
        "rounds": len(measured.rounds),
        "chosen": [asdict(each) for each in chosen(table, traffic, backends)],
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
