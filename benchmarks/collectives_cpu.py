"""Six operations between two processes of this machine, from Python: hocket against gloo, Open MPI, MPICH, Intel MPI.

Every library has its own job, all of them live at once, and in every round each has its turn in random order while the
others sleep. Sizes are those of a rank's larger array; send_recv is a message there and one back.

Intel MPI's wheel has a library of the same file name as MPICH's, so it needs an environment of its own:
python3.11 -m venv .venv-impi && .venv-impi/bin/pip install impi-rt. Without it the script says so and goes on.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

from collectives_rank import OPERATIONS, PERSISTENT
from libraries import find_intel_mpi, job, size_name

from hocket.measure import (
    Comparison,
    Coordinator,
    Key,
    Measurement,
    Row,
    finish,
    judge,
    measure,
    null_rows,
    progress,
    ratios,
    report,
    run_script,
    script_parser,
    settings_of,
)

RANK_SCRIPT = Path(__file__).with_name("collectives_rank.py")
KIB, MIB = 1 << 10, 1 << 20
SIZES = (16, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
OURS = "hocket"
LEAST_MEAN, LEAST_CELL = 1.5, 0.95
MOST_PERSISTENT_S = 0.2e-6
MOST_TIMES_MEMORY = 2.0


def cell_rows(measurement: Measurement, operations: list[str]) -> list[Row]:
    """One a cell; it holds unless its whole interval is below 0.95."""
    rows = []
    for op in operations:
        for nbytes in SIZES:
            case = f"{op} {size_name(nbytes)}"
            rivals = tuple(
                key.name for key in measurement.iterations if key.case == case and not is_ours_or_memory(key.name)
            )
            row = judge(measurement, Comparison(case, OURS, rivals, LEAST_CELL))
            if row.holds is not None and row.interval is not None:
                row = replace(row, holds=row.interval[1] >= LEAST_CELL)
            rows.append(row)
    return rows


def is_ours_or_memory(name: str) -> bool:
    return name.startswith(("hocket", "np."))


def mean_row(cells: list[Row]) -> Row:
    """The geometric mean over all cells."""

    def mean(values: list[float]) -> float:
        return math.exp(sum(map(math.log, values)) / len(values))

    gain = mean([row.ratio for row in cells])
    can_be_judged = not any(row.unjudged for row in cells)
    return Row(
        case=f"geometric mean of {len(cells)} cells",
        rival="the best of each cell",
        ours=mean([row.ours for row in cells]),
        theirs=mean([row.theirs for row in cells]),
        unit="us",
        ratio=gain,
        interval=None,
        target=LEAST_MEAN,
        holds=gain >= LEAST_MEAN if can_be_judged else None,
    )


def persistent_row(measurement: Measurement) -> Row:
    """The persistent all_reduce of 16 B, against 0.2 us."""
    case = Key("all_reduce 16 B", PERSISTENT)
    row = judge(measurement, Comparison(case.case, PERSISTENT, (OURS,), label="all_reduce 16 B, persistent"))
    fits = row.ours <= 1e6 * MOST_PERSISTENT_S
    target = row.theirs / (1e6 * MOST_PERSISTENT_S)  # as a ratio of what the ordinary one takes
    return replace(row, target=target, holds=fits)


def memory_row(measurement: Measurement) -> Row:
    """all_reduce of 64 MiB against the time that memory takes for the bytes it must move.

    Each of two ranks reads its half of both arrays and writes it, then reads and writes the other half: 2.5 times the
    array. A copy of the array moves twice its size. So it can take 1.25 times as long as a copy that both make at once.
    """
    case, copy = "all_reduce 64 MiB", "np.copyto(y, x)"
    row = judge(measurement, Comparison(case, OURS, (copy,), label="all_reduce 64 MiB against a copy, times 1.25"))
    seen = ratios(measurement, Key(case, OURS), Key(case, copy))
    return replace(
        row,
        theirs=1.25 * row.theirs,
        ratio=1.25 * seen.median,
        interval=(1.25 * seen.low, 1.25 * seen.high),
        target=1 / MOST_TIMES_MEMORY,
        holds=1.25 * seen.median >= 1 / MOST_TIMES_MEMORY,
    )


def main() -> int:
    parser = script_parser(__doc__.split("\n\n")[0])
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS), metavar="OP")
    options = parser.parse_args()
    settings = settings_of(options)
    libraries = ["hocket", "gloo", "openmpi", "mpich", "memory"]
    if find_intel_mpi() is None:
        print("Intel MPI is left out: .venv-impi is not there (see the head of this script)", file=sys.stderr)
    else:
        libraries.append("intelmpi")
    measurements, cells = [], []
    rows: list[Row] = []
    for op in options.operations:  # one after the other: the arrays of all of them would not fit side by side
        jobs = [job(each, RANK_SCRIPT, [op, *map(str, SIZES)], 2) for each in libraries]
        with Coordinator(jobs) as coordinator, progress(op) as on_round:
            measurement = measure(coordinator, settings, on_round=on_round)
        measurements.append(measurement)
        cells += cell_rows(measurement, [op])
        if op == "all_reduce":
            rows += [persistent_row(measurement), memory_row(measurement)]
    rows = [*cells, mean_row(cells), *rows]
    for measurement in measurements:
        rows += null_rows(measurement)
    claim = "six operations on float32 from Python, two ranks, against the best of the other libraries in each cell"
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
