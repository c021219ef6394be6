"""Compare two libraries on this machine: which one is faster, and is the difference more than noise?

python examples/bench.py
"""

import math

from hocket.bench import choose_points, compare, parse_targets, run_points
from hocket.measure import StopRule, progress


def main() -> None:
    targets = parse_targets("shm,mpi:mpich")
    points = choose_points(["all_reduce"], targets, sizes=[8, 64 << 10])
    with progress("shm and MPICH", "points") as on_round:
        run = run_points(points, targets, 2, StopRule(time_limit_s=7), num_launches=7, on_round=on_round)
    for result in run.results:
        p99 = result.percentile(99)
        point = result.point
        print(f"{point.way:32} {point.nbytes:6} B  {result.value:8.2f} {result.unit}, 99 %: {p99:.2f}")
    shm, mpich = ([each for each in run.results if each.point.target == target.name] for target in targets)
    for row in compare(mpich, shm, paired=True).rows:
        low, high = row.interval or (0.0, math.inf)
        print(f"{row.case}: {row.verdict}: shm takes {row.ratio:.2g} [{low:.2g}, {high:.2g}] times as long as MPICH")


if __name__ == "__main__":
    main()
