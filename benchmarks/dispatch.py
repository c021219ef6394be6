"""What it costs to go through hocket: operations on its mpi and gloo lanes against mpi4py's non-blocking forms and
torch.distributed's of the same ones.

Both run in one process over one library, alternating, on the same arrays.
"""

from __future__ import annotations

import sys
from pathlib import Path

from libraries import size_name

from hocket.measure import (
    Comparison,
    Coordinator,
    Measurement,
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

RANK = Path(__file__).with_name("dispatch_rank.py")
KIB, MIB = 1 << 10, 1 << 20
REDUCTIONS, MESSAGES = "all_reduce", "there and back"
CASES = [(REDUCTIONS, 8), (REDUCTIONS, 64 * KIB), (REDUCTIONS, 4 * MIB), (MESSAGES, 8), (MESSAGES, 64 * KIB)]
OURS = {lane: f"hocket backend='{lane}'" for lane in ("mpi", "gloo")}
THEIRS = {"mpi": "mpi4py, non-blocking", "gloo": "torch.distributed over gloo"}
# As a ratio theirs / ours. Over MPI an all_reduce of 8 bytes has a limit in time instead.
LEAST = {"mpi": 1 / 1.05, "gloo": 1 / 1.1}
MOST_MORE_S = 1e-6


def case_name(lane: str, kind: str, nbytes: int) -> str:
    return f"{lane} {kind} {size_name(nbytes)}"


def target_of(measured: Measurement, lane: str, kind: str, nbytes: int) -> float:
    if (lane, kind, nbytes) != ("mpi", REDUCTIONS, 8):
        return LEAST[lane]
    # One microsecond more, as a ratio of what mpi4py takes in this run.
    theirs = sorted(each.seconds[key] for each in measured.rounds for key in each.seconds
                    if key.case == case_name(lane, kind, nbytes) and key.name == THEIRS[lane])  # fmt: skip
    median_s = theirs[len(theirs) // 2]
    return median_s / (median_s + MOST_MORE_S)


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    rows, measurements = [], []
    for lane in OURS:  # one after the other: ranks of the other job that wait would disturb
        job = direct_job(f"dispatch {lane}", (sys.executable, str(RANK), lane), 2, {"OMP_NUM_THREADS": "1"})
        with Coordinator([job]) as coordinator, progress(f"dispatch {lane}") as on_round:
            measured = measure(coordinator, settings_of(options), on_round=on_round)
        measurements.append(measured)
        for kind, nbytes in CASES:
            target = target_of(measured, lane, kind, nbytes)
            rows.append(judge(measured, Comparison(case_name(lane, kind, nbytes), OURS[lane], (THEIRS[lane],), target)))
        rows += null_rows(measured)
    claim = "float32 between two ranks through hocket's lanes against the lane's library alone, in the same process"
    return finish(report(claim, rows, measurements), options)


if __name__ == "__main__":
    run_script(main)
