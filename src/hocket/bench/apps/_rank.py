"""One rank of a measured application: ``python -m hocket.bench.apps._rank NAME SCALE``.

Four contenders are timed in the same rounds: one process solves the whole problem; all ranks solve it together; one
rank does its share of the work while the other ranks are idle; and all ranks do their shares at once, without
communication.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from hocket.bench.apps.registry import find_problem
from hocket.measure import Contender, serve
from hocket.measure.loops import looped
from hocket.session import init

ALONE, TOGETHER, SHARE, SHARES = "one process", "all ranks", "a share, others idle", "all shares at once"


def main(name: str, scale: int) -> None:
    """Set up the problem, check both solutions, and serve the coordinator."""
    comm = init(timeout=120.0)
    problem = find_problem(name)(scale)
    solution = problem.solve(comm)
    if comm.rank == 0:
        problem.check(solution)
        problem.check(problem.solve_alone())

    def on_rank_0(call: Callable[[], object]) -> Callable[[int], object]:
        return looped(call) if comm.rank == 0 else lambda iterations: None

    def work() -> object:
        return problem.work(comm.rank, comm.size)

    contenders = [
        Contender(name, ALONE, on_rank_0(problem.solve_alone)),
        Contender.of_call(name, TOGETHER, lambda: problem.solve(comm)),
        Contender(name, SHARE, on_rank_0(work)),
        Contender.of_call(name, SHARES, work),
    ]
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
