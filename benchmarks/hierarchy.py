"""Collectives by levels (shared memory within hosts, a library between them) against flat libraries.

Two ranks on each of two hosts of the laboratory (lab.py), joined by links of 1 and of 10 Gbit/s. Rivals are MPICH's own
and gloo's own ways, called through hocket in the same job, and Open MPI in a job of its own, whose ranks spin while
they wait, which four of them on two processors pay for. Of ours the best schedule counts, as the tuner would have it.
What crosses the link is counted by the kernel, headers included, and compared with the least that has to.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path

from hierarchy_rank import OPS
from lab import NUM_HOSTS, Lab, find_obstacle
from libraries import lab_job, openmpi_lab_job, size_name

from hocket.errors import BackendUnavailable
from hocket.measure import (
    Comparison,
    Coordinator,
    Measurement,
    Row,
    Settings,
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

RANK_SCRIPT = Path(__file__).with_name("hierarchy_rank.py")
RIVAL_SCRIPT = Path(__file__).with_name("collectives_rank.py")
KIB, MIB = 1 << 10, 1 << 20
SIZES = (64 * KIB, MIB, 16 * MIB)
RANKS_PER_HOST = 2
RATES_GBIT_S = (1.0, 10.0)
LEAST_GAIN = 1.3
LEAST_GAIN_FROM = MIB
# Of Ethernet, IP and TCP on a link with segments of 1,448 bytes, and of what libraries say to each other.
MOST_OVERHEAD = 1.08


def least_nbytes(op: str, nbytes: int) -> float:
    """What a host has to send, if the largest array of a rank has so many bytes."""
    num_ranks = NUM_HOSTS * RANKS_PER_HOST
    elsewhere = (NUM_HOSTS - 1) / NUM_HOSTS
    return {
        "all_reduce": 2 * elsewhere * nbytes,  # Patarasuk and Yuan 2009, between hosts
        "all_gather": elsewhere * nbytes,
        "all_to_all": elsewhere * nbytes * num_ranks / NUM_HOSTS,
    }[op]


def measured(rate_gbit_s: float, ops: list[str], settings: Settings) -> tuple[list[Row], Measurement]:
    where = f"{NUM_HOSTS} hosts, {NUM_HOSTS * RANKS_PER_HOST} ranks (oversubscribed), {rate_gbit_s:g} Gbit/s"
    rest = [",".join(ops), *(str(nbytes) for nbytes in SIZES)]
    with Lab(rate_gbit_s) as lab, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "counted.json"
        jobs = [
            lab_job("hocket", lab, (sys.executable, str(RANK_SCRIPT), "hocket", str(file), *rest), RANKS_PER_HOST),
            openmpi_lab_job(lab, (sys.executable, str(RIVAL_SCRIPT), "openmpi", *rest), RANKS_PER_HOST),
        ]
        with Coordinator(jobs, start_timeout_s=240.0) as coordinator, progress(where) as on_round:
            measurement = measure(coordinator, settings, on_round=on_round)
        counted = {(case, name): value for case, name, value in json.loads(file.read_text())}
    rows = []
    for op in ops:
        for nbytes in SIZES:
            rows += rows_of(measurement, counted, where, op, nbytes)
    return rows, measurement


def rows_of(
    measurement: Measurement, counted: dict[tuple[str, str], float], where: str, op: str, nbytes: int
) -> list[Row]:
    """The best of ours against the best flat one, and against each; what they send."""
    case = f"{op} {size_name(nbytes)}"
    names = [key.name for key in measurement.iterations if key.case == case]
    flat = tuple(name for name in names if name in ("mpi", "gloo") or name.startswith("openmpi "))
    ours = [name for name in names if name.startswith("mpi/")]
    target = LEAST_GAIN if nbytes >= LEAST_GAIN_FROM else None

    def compare(name: str, rivals: tuple[str, ...], target: float | None = None) -> Row:
        label = f"{where}: {case}, {name}"
        return judge(measurement, Comparison(case, name, rivals, target=target, needs_cores=False, label=label))

    best = max(ours, key=lambda name: compare(name, flat).ratio)
    rows = [compare(best, flat, target), *(compare(best, (name,)) for name in flat)]
    rows += [
        crossing(f"{where}: {case}, {name}", counted[case, name], least_nbytes(op, nbytes), is_ours=name == best)
        for name in (best, "mpi", "gloo")
    ]
    return rows


def crossing(label: str, sent: float, least: float, *, is_ours: bool) -> Row:
    """What one operation sends over the link, against the bound."""
    return Row(
        case=f"{label}: bytes from a host",
        rival="the least",
        ours=sent / KIB,
        theirs=least / KIB,
        unit="KiB",
        ratio=least / sent,
        interval=None,
        target=1 / MOST_OVERHEAD if is_ours else None,
        holds=sent <= MOST_OVERHEAD * least if is_ours else None,
    )


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--rate", action="append", type=float, metavar="GBIT_S", help="of the link; may be repeated")
    parser.add_argument("--op", action="append", choices=OPS, help="may be repeated; by default all")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the laboratory's end
    if (reason := find_obstacle()) is not None:
        raise BackendUnavailable(reason)
    rows: list[Row] = []
    measurements: list[Measurement] = []
    for rate in options.rate or RATES_GBIT_S:
        found, measurement = measured(rate, options.op or list(OPS), settings_of(options))
        rows += found
        measurements.append(measurement)
    for measurement in measurements:
        rows += null_rows(measurement)
    return finish(report("collectives in levels between hosts", rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
