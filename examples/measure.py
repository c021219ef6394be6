"""Compare two sizes of all_reduce as hocket's benchmarks do: ``hocket run -n 2 examples/measure.py``."""

import numpy as np

import hocket as hk
from hocket.measure import Comparison, Contender, Settings, Team, judge, measure

comm = hk.init()
small, large = np.zeros(4, np.float32), np.zeros(1 << 16, np.float32)


def gather(values: list[float]) -> list[list[float]]:
    out = np.empty((comm.size, len(values)))
    comm.all_gather(out, np.array(values))
    return out.tolist()


contenders = [
    Contender.of_call("all_reduce", "16 B", lambda: comm.all_reduce(small)),
    Contender.of_call("all_reduce", "256 KiB", lambda: comm.all_reduce(large)),
]
measured = measure(Team(contenders, comm.rank, comm.barrier, gather), Settings(time_limit_s=10))
row = judge(measured, Comparison("all_reduce", ours="16 B", rivals=("256 KiB",), needs_cores=False))
if comm.rank == 0:
    print(
        f"16 B: {row.ours:.2f} {row.unit}, 256 KiB: {row.theirs:.2f} {row.unit}, ratio {row.ratio:.1f} {row.interval}"
    )
comm.finalize()
