"""Time of a training step under DistributedDataParallel: backend "hocket" against "gloo", two ranks.

Both backends are process groups of the same two processes; their steps take turns in random order. The share of
communication is 1 - step without gradient exchange / step, for both alike.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

from libraries import job

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
    report,
    run_script,
    script_parser,
    settings_of,
)

RANK_SCRIPT = Path(__file__).with_name("ddp_rank.py")
TARGET = 1.0


def communication_share(measurement: Measurement, case: str, backend: str) -> float:
    """The median over rounds of 1 - step without exchange / step."""
    step, alone = Key(case, f"{backend} step"), Key(case, f"{backend} no_sync")
    return median(1 - round_.seconds[alone] / round_.seconds[step] for round_ in measurement.rounds)


def rows_of(measurement: Measurement, case: str) -> list[Row]:
    """The step with a target, and the shares without."""
    step = Comparison(case, "hocket step", ("gloo step",), TARGET, label=f"{case}, DDP step")
    ours, theirs = (communication_share(measurement, case, backend) for backend in ("hocket", "gloo"))
    share = Row(f"{case}, share of communication", "gloo", ours, theirs, "share", theirs / ours, None, None, None)
    return [judge(measurement, step), share]


def main() -> int:
    options = script_parser(__doc__.split("\n\n")[0]).parse_args()
    with (
        Coordinator([job("ddp", RANK_SCRIPT, [], 2)]) as coordinator,
        progress("DDP step, 2 ranks") as on_round,
    ):
        measured = measure(coordinator, settings_of(options), on_round=on_round)
    cases = dict.fromkeys(key.case for key in measured.iterations)
    rows = [row for case in cases for row in rows_of(measured, case)]
    claim = "a DDP training step (batch 8 per rank, one thread a rank) over hocket is no slower than over gloo"
    return finish(report(claim, [*rows, *null_rows(measured)], [measured]), options)


if __name__ == "__main__":
    run_script(main)
