"""One rank of mixing.py: measures a table, then serves the replays.

mixing_rank.py TABLE BACKEND...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import repeat

import hocket as hk
from hocket.comm.policy import CHOOSABLE, LARGEST_NBYTES, Candidate, Choices, Range
from hocket.comm.replay import Replay
from hocket.measure import Contender, serve
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep, measure_table
from hocket.tune.table import Table, save_table
from mixing import COARSE, FINE, coarse, traffics


class CoarsePolicy(hk.Policy):
    """One backend per operation and class of types, whatever the size."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def choices(self, size: int, backends: Sequence[str]) -> Choices:
        best = coarse(self._table, size, backends)
        return {key: [Range(LARGEST_NBYTES, (name,))] for key, name in best.items() if key[0] in CHOOSABLE}

    def explain(
        self, size: int, backends: Sequence[str], op: str, dtypes: str, nbytes: int
    ) -> tuple[str, list[Candidate]]:
        name = coarse(self._table, size, backends)[op, dtypes]
        return "the best over all sizes", [Candidate(name, None, "measured")]


def main() -> None:
    path, *backends = sys.argv[1:]
    comm = hk.init(backends=backends, policy=hk.Policy.fixed({}), progress="caller", timeout=300)
    steps = traffics(comm.size)
    wanted = {step.kind for traffic in steps for step in traffic.steps}
    # Besides the sizes of the sweep, those of the traffic itself.
    sizes = sorted({*Sweep().sizes, *(step.nbytes // 4 * 4 for each in steps for step in each.steps)})
    table = measure_table(comm, Sweep(ops=sorted(wanted), sizes=sizes, busy_sizes=(), rounds=7, time_limit_s=200.0))
    if comm.rank == 0:
        save_table(table, path)
    comm.barrier()
    policies: dict[str, hk.Policy] = {name: hk.Policy.fixed({"*": name}) for name in backends}
    policies |= {FINE: TablePolicy(table), COARSE: CoarsePolicy(table)}
    communicators = {name: comm.dup() for name in policies}  # one each: to change a policy takes its time
    for name, policy in policies.items():
        communicators[name].policy = policy
    contenders = []
    setup = "one host" if "shm" in backends else "one host, foreign libraries"
    for traffic in steps:
        replay = None
        for name, each in communicators.items():
            replay = Replay(each, traffic, like=replay)
            _check_explained(each, replay)
            contenders.append(Contender(f"{setup}: {traffic.name}", name, _run(replay)))
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


def _run(replay: Replay) -> Callable[[int], None]:
    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            replay()

    return run


def _check_explained(comm: hk.Communicator, replay: Replay) -> None:
    """What the records show was used is what `explain` says."""
    replay()
    for record in comm.records()[-len(replay.traffic.steps) :]:
        explained = comm.explain(record.op, record.nbytes, record.dtype, record.reduction or "sum")
        assert record.backend == explained.chosen, f"{record} against {explained}"


if __name__ == "__main__":
    main()
