"""The traffic of three published models over one library, and over several of which each operation has the fastest.

A job of two ranks holds all libraries. It measures its own table first, then replays the traffic of one training step
(its communication alone) with every single library, with the best library per operation (coarse) and with the best per
operation and size (fine), interleaved. What the table predicts for each stands beside what was measured.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from hocket.measure import (
    Comparison,
    Coordinator,
    Measurement,
    Row,
    direct_job,
    finish,
    judge,
    measure,
    null_rows,
    progress,
    report,
    run_script,
    script_parser,
    settings_of,
)
from hocket.trace.published import dlrm_criteo, gpt_345m, moe_350m
from hocket.trace.traffic import Traffic
from hocket.tune.mix import COARSE, FINE, predicted_seconds
from hocket.tune.table import Table, load_table

RANK_SCRIPT = Path(__file__).with_name("mixing_rank.py")
NUM_RANKS = 2
SETUPS = {"one host": ("shm", "gloo", "mpi"), "one host, foreign libraries": ("gloo", "mpi")}
LEAST, PREDICTED_GAIN, LEAST_WHERE_PREDICTED = 0.97, 1.15, 1.15
SCALE = {"gpt-345m": 12, "moe-350m": 6, "dlrm-criteo": 1}


def traffics(num_ranks: int) -> list[Traffic]:
    """The three steps, reduced so that a replay takes a fraction of a second; their `source` says how."""
    builders = {"gpt-345m": gpt_345m, "moe-350m": moe_350m, "dlrm-criteo": dlrm_criteo}
    return [build(num_ranks, scale=SCALE[name]) for name, build in builders.items()]


def measured(setup: str, settings: object, folder: Path) -> tuple[Measurement, Table]:
    table = folder / f"{setup}.json"
    argv = (sys.executable, str(RANK_SCRIPT), str(table), *SETUPS[setup])
    job = direct_job(setup, argv, NUM_RANKS, {"OMP_NUM_THREADS": "1"})
    with Coordinator([job], start_timeout_s=400.0) as coordinator, progress(setup) as on_round:
        return measure(coordinator, settings, on_round=on_round), load_table(table)  # type: ignore[arg-type]


def rows_of(setup: str, measurement: Measurement, table: Table) -> list[Row]:
    rows = []
    backends = SETUPS[setup]
    for traffic in traffics(NUM_RANKS):
        singles = {name: predicted_seconds(table, traffic, backends, name) for name in backends}
        known = {name: seconds for name, seconds in singles.items() if seconds is not None}
        mixed = predicted_seconds(table, traffic, backends, FINE)
        best = min(known, key=lambda name: known[name])
        gain = known[best] / mixed if mixed else 0.0
        target = LEAST_WHERE_PREDICTED if gain >= PREDICTED_GAIN else LEAST
        case = traffic.name
        label = f"{setup}: {case} (best single by the table: {best}; predicted {gain:.2f})"
        rows.append(judge(measurement, Comparison(case, FINE, tuple(backends), target, label=label)))
        rows.append(
            judge(
                measurement, Comparison(case, FINE, (COARSE,), label=f"{setup}: {case}, per size against per operation")
            )
        )
    return rows


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    settings = settings_of(options)
    rows, measurements = [], []
    with tempfile.TemporaryDirectory() as folder:
        for setup in SETUPS:
            measurement, table = measured(setup, settings, Path(folder))
            rows += rows_of(setup, measurement, table)
            rows += null_rows(measurement)
            measurements.append(measurement)
    for traffic in traffics(NUM_RANKS):
        print(f"{traffic.name}: {traffic.source}", file=sys.stderr)
    claim = "one step's traffic over the tuned mix of libraries against the best single library"
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
