"""One rank of an application that is measured: ``python -m hocket.bench.apps._rank NAME SCALE``.

Four things are timed in the same rounds: the problem solved by one process, the problem solved by all ranks together, a
rank's share of the work while the others are idle, and all ranks' shares at once, without any communication.
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
    """Set the problem up, check both solutions, and serve."""
    comm = init(timeout=120.0)
    problem = find_problem(name)(scale)
    solution = problem.solve(comm)
    if comm.rank == 0:
        problem.check(solution)
        problem.check(problem.solve_alone())

    def on_first(call: Callable[[], object]) -> Callable[[int], object]:
        return looped(call) if comm.rank == 0 else lambda iterations: None

    def work() -> object:
        return problem.work(comm.rank, comm.size)

    contenders = [
        Contender(name, ALONE, on_first(problem.solve_alone)),
        Contender.of_call(name, TOGETHER, lambda: problem.solve(comm)),
        Contender(name, SHARE, on_first(work)),
        Contender.of_call(name, SHARES, work),
    ]
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
