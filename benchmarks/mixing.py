"""The traffic of three published models over one library, and over several of which each operation has the fastest.

Four setups: one host, one host without shared memory, and two hosts joined by a link of 1 and of 10 Gbit/s (lab.py:
network namespaces of this machine, needs root). In each a job of two ranks holds all libraries. It measures its own
table first, then replays the traffic of one training step (its communication alone) with every single library, with the
best library per operation (coarse) and with the best per operation and size (fine), interleaved. What the table
predicts for each stands beside what was measured.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab import NUM_HOSTS, Lab, find_obstacle
from libraries import lab_job

from hocket.errors import BackendUnavailable
from hocket.measure import (
    Comparison,
    Coordinator,
    Job,
    Measurement,
    Row,
    Settings,
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
from hocket.session.published_steps import dlrm_criteo, gpt_345m, moe_350m
from hocket.trace.traffic import Traffic
from hocket.tune.mix import COARSE, FINE, predicted_seconds
from hocket.tune.table import Table, load_table

RANK_SCRIPT = Path(__file__).with_name("mixing_rank.py")
NUM_RANKS = 2


@dataclass(frozen=True)
class Setup:
    """Where the ranks are, and what may carry their traffic.

    Args:
        backends: names of the libraries.
        rate_gbit_s: of the link between two hosts; None: one host.
        scale: by which each model is reduced, so that a replay takes a fraction of a second.
    """

    backends: tuple[str, ...]
    rate_gbit_s: float | None = None
    scale: Mapping[str, int] = field(default_factory=lambda: {"gpt-345m": 12, "moe-350m": 6, "dlrm-criteo": 1})

    def traffics(self, num_ranks: int = NUM_RANKS) -> list[Traffic]:
        """The three steps; their `source` says how they were reduced."""
        builders = {"gpt-345m": gpt_345m, "moe-350m": moe_350m, "dlrm-criteo": dlrm_criteo}
        return [build(num_ranks, scale=self.scale[name]) for name, build in builders.items()]


SMALL = {"gpt-345m": 48, "moe-350m": 48, "dlrm-criteo": 8}
SETUPS = {
    "one host": Setup(("shm", "gloo", "mpi")),
    "one host, foreign libraries": Setup(("gloo", "mpi")),
    "two hosts, 1 Gbit/s": Setup(("gloo", "mpi"), 1.0, SMALL),
    "two hosts, 10 Gbit/s": Setup(("gloo", "mpi"), 10.0, {"gpt-345m": 24, "moe-350m": 12, "dlrm-criteo": 2}),
}
LEAST, PREDICTED_GAIN, LEAST_WHERE_PREDICTED = 0.97, 1.15, 1.15


def job_of(name: str, table: Path, lab: Lab | None) -> Job:
    argv = (sys.executable, str(RANK_SCRIPT), name, str(table))
    if lab is None:
        return direct_job(name, argv, NUM_RANKS, {"OMP_NUM_THREADS": "1"})
    return lab_job(name, lab, argv, NUM_RANKS // NUM_HOSTS)


def measured(name: str, settings: Settings, folder: Path) -> tuple[Measurement, Table]:
    table = folder / f"{name.replace('/', ' per ')}.json"
    rate = SETUPS[name].rate_gbit_s
    with (
        contextlib.nullcontext() if rate is None else Lab(rate) as lab,
        Coordinator([job_of(name, table, lab)], start_timeout_s=600.0) as coordinator,
        progress(name) as on_round,
    ):
        return measure(coordinator, settings, on_round=on_round), load_table(table)


def rows_of(setup: str, measurement: Measurement, table: Table) -> list[Row]:
    rows = []
    backends = SETUPS[setup].backends
    for traffic in SETUPS[setup].traffics():
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
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--setup", action="append", choices=list(SETUPS), help="only this one; may be repeated")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the laboratory's end
    # Several steps a sample: one is over in hundredths of a second, and hit as a whole by whatever disturbs it.
    settings = replace(settings_of(options), min_sample_s=0.1)
    rows, measurements = [], []
    reason = find_obstacle() if any(SETUPS[each].rate_gbit_s for each in options.setup or SETUPS) else None
    if reason is not None:
        raise BackendUnavailable(f"{reason}; --setup names those on one host")
    with tempfile.TemporaryDirectory() as folder:
        for setup in options.setup or SETUPS:
            measurement, table = measured(setup, settings, Path(folder))
            rows += rows_of(setup, measurement, table)
            rows += null_rows(measurement)
            measurements.append(measurement)
    for setup in options.setup or SETUPS:
        for traffic in SETUPS[setup].traffics():
            print(f"{setup}: {traffic.name}: {traffic.source}", file=sys.stderr)
    claim = "one step's traffic over the tuned mix of libraries against the best single library"
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
