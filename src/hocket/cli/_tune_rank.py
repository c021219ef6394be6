"""One rank of `hocket tune run`: ``python -m hocket.cli._tune_rank OPTIONS``, with its options as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from hocket.backends import find_backends
from hocket.comm.policy import DefaultPolicy
from hocket.measure import progress
from hocket.session import init
from hocket.tune.sweep import Sweep, measure_table
from hocket.tune.table import load_table, save_table


def main(options: dict[str, Any]) -> None:
    """Measure, and write the table on rank 0."""
    installed = [name for name, adapter in find_backends().items() if adapter.find_obstacle() is None]
    # Not by the table that is about to be replaced.
    comm = init(backends=options["backends"] or ["shm", *installed], policy=DefaultPolicy(), timeout=120.0)
    sweep = Sweep(**options["sweep"])
    if comm.rank == 0:
        with progress(f"tuning {', '.join(comm.backends)}") as on_round:
            table = measure_table(comm, sweep, on_round=on_round)
        path = options["output"]
        if options["merge"] and os.path.exists(path):
            table = load_table(path).merged(table)  # of the same machine, or TableError
        save_table(table, path)
        for name, reason in comm.backends.left_out.items():
            print(f"left out {name}: {reason}", file=sys.stderr)
    else:
        measure_table(comm, sweep)
    comm.finalize()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
