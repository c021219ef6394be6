"""One rank of mixing.py: measures a table, then serves the replays.

mixing_rank.py SETUP TABLE
"""

from __future__ import annotations

import sys

from mixing import SETUPS

import hocket as hk
from hocket.measure import serve
from hocket.tune.mix import mix_contenders, sweep_of
from hocket.tune.sweep import measure_table
from hocket.tune.table import save_table


def main() -> None:
    setup, path = SETUPS[sys.argv[1]], sys.argv[2]
    comm = hk.init(backends=setup.backends, policy=hk.Policy.fixed({}), progress="caller", timeout=300)
    steps = setup.traffics(comm.size)
    table = measure_table(comm, sweep_of(steps))
    if comm.rank == 0:
        save_table(table, path)
    comm.barrier()
    serve(mix_contenders(comm, table, steps), comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main()
