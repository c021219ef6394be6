"""The traffic of three published models over one library, and over several of which each operation has the fastest.

A job of two ranks holds all libraries. It measures its own table first, then replays the traffic of one training step
(its communication alone) with every single library, with the best library per operation (coarse) and with the best per
operation and size (fine), interleaved. What the table predicts for each stands beside what was measured.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hocket.comm.policy import dtype_class
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
from hocket.tune.policy import TablePolicy
from hocket.tune.table import Table, load_table

RANK_SCRIPT = Path(__file__).with_name("mixing_rank.py")
NUM_RANKS = 2
FINE, COARSE = "tuned mix, per size", "tuned mix, per operation"
SETUPS = {"one host": ("shm", "gloo", "mpi"), "one host, foreign libraries": ("gloo", "mpi")}
LEAST, PREDICTED_GAIN, LEAST_WHERE_PREDICTED = 0.97, 1.15, 1.15
SCALE = {"gpt-345m": 12, "moe-350m": 6, "dlrm-criteo": 1}


def traffics(num_ranks: int) -> list[Traffic]:
    """The three steps, reduced so that a replay takes a fraction of a second; their `source` says how."""
    builders = {"gpt-345m": gpt_345m, "moe-350m": moe_350m, "dlrm-criteo": dlrm_criteo}
    return [build(num_ranks, scale=SCALE[name]) for name, build in builders.items()]


def predicted_seconds(table: Table, traffic: Traffic, backends: Sequence[str], choose: str) -> float | None:
    """Sum of the table's times over the operations of a step, one after the other.

    Args:
        choose: a backend's name, or `FINE` or `COARSE`.
    """
    policy = coarse(table, traffic.num_ranks, backends) if choose == COARSE else TablePolicy(table)
    total = 0.0
    for step in traffic.steps:
        dtypes = dtype_class(step.kind, step.dtype)
        if choose in backends:
            name = choose
        elif choose == COARSE:
            name = policy[step.kind, dtypes]
        else:
            name = policy.explain(traffic.num_ranks, backends, step.kind, dtypes, step.nbytes)[1][0].backend
        seconds = TablePolicy(table).expected_seconds(traffic.num_ranks, name, step.kind, dtypes, step.nbytes)
        if seconds is None:
            return None
        total += seconds
    return total


def coarse(table: Table, num_ranks: int, backends: Sequence[str]) -> dict[tuple[str, str], str]:
    """The backend that is the best over all sizes of an operation: with the least mean of its times over the best."""
    choice = {}
    for (op, dtypes, ranks, busy), sizes in table.cells.items():
        if ranks != num_ranks or busy:
            continue
        excess = {
            name: [
                rows[name].seconds / min(row.seconds for row in rows.values())
                for rows in sizes.values()
                if name in rows
            ]
            for name in backends
        }
        choice[op, dtypes] = min((sum(each) / len(each), name) for name, each in excess.items() if each)[1]
    return choice


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
        case = f"{setup}: {traffic.name}"
        label = f"{case} (best single by the table: {best}; predicted {gain:.2f})"
        rows.append(judge(measurement, Comparison(case, FINE, tuple(backends), target, label=label)))
        rows.append(
            judge(measurement, Comparison(case, FINE, (COARSE,), label=f"{case}, per size against per operation"))
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
