"""One rank of an application that is measured: ``python -m hocket.bench.apps._rank NAME SCALE``.

Four things are timed in the same rounds: the problem solved by one process, the problem solved by all ranks together, a
rank's share of the work while the others are idle, and all ranks' shares at once, without any communication.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import repeat

from hocket.bench.apps.registry import find_problem
from hocket.measure import Contender, serve
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

    def looped(call: Callable[[], object], on_all: bool) -> Callable[[int], None]:
        def run(iterations: int) -> None:
            if on_all or comm.rank == 0:
                for _ in repeat(None, iterations):
                    call()

        return run

    def work() -> object:
        return problem.work(comm.rank, comm.size)

    contenders = [
        Contender(name, ALONE, looped(problem.solve_alone, False)),
        Contender(name, TOGETHER, looped(lambda: problem.solve(comm), True)),
        Contender(name, SHARE, looped(work, False)),
        Contender(name, SHARES, looped(work, True)),
    ]
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
