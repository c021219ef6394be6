"""One rank of `hocket tune run` and `check`: ``python -m hocket.cli._tune_rank OPTIONS``, with its options as JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hocket.backends import backends_among
from hocket.comm import Communicator
from hocket.comm.policy import DefaultPolicy
from hocket.measure import progress
from hocket.measure.comparison import MAX_FOREIGN_BUSY
from hocket.measure.reporting import NOT_JUDGED
from hocket.session import init
from hocket.tune.policy import TablePolicy
from hocket.tune.recheck import recheck
from hocket.tune.sweep import Sweep, measure_table
from hocket.tune.table import load_table, save_table


def main(options: dict[str, Any]) -> None:
    """Measure a table and write it on every host; or time choices of a table again and write the findings."""
    comm = communicator_over(options["backends"])
    sweep = Sweep(**options["sweep"])
    if "check" in options:
        points = recheck(comm, load_table(options["check"]), options["points"], options["seed"], sweep)
        if comm.rank == 0:
            Path(options["output"]).write_text(json.dumps([asdict(point) for point in points]))
        comm.finalize()
        return
    with progress(f"tuning {', '.join(comm.backends)}", shown=comm.rank == 0) as on_round:
        table = measure_table(comm, sweep, on_round=on_round)
    if not table.is_judged and not options["beside_others"]:
        if comm.rank == 0:
            print(
                f"hocket tune: no table written: other programs took {table.foreign_busy:.0%} of the CPU time, more "
                f"than {MAX_FOREIGN_BUSY:.0%}; measure again on an idle machine, or with --beside-others",
                file=sys.stderr,
            )
        comm.finalize()
        sys.exit(NOT_JUDGED)
    if comm.local_rank == 0:  # one table per host
        path = options["output"]
        if options["merge"] and os.path.exists(path):
            table = load_table(path).merged(table)  # raises TableError if the machine differs
        save_table(TablePolicy(table).with_rules(), path)
    if comm.rank == 0:
        for name, reason in comm.backends.left_out.items():
            print(f"left out {name}: {reason}", file=sys.stderr)
    comm.barrier()
    comm.finalize()


def communicator_over(names: list[str] | None) -> Communicator:
    """Return the world over some libraries, by default all installed ones.

    Its policy reads no table: the table may be about to be replaced.
    """
    installed = [name for name, adapter in backends_among(None).items() if adapter.find_obstacle() is None]
    return init(backends=names or ["shm", *installed], policy=DefaultPolicy(), timeout=120.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
