"""Compare a tuned mix of libraries with each single library, on the traffic of a real step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hocket.comm import Communicator
from hocket.comm.policy import CHOOSABLE, Choices, Group, Policy, RankedCarrier, dtype_class, join_carrier
from hocket.comm.replay import Replay
from hocket.errors import InvalidState
from hocket.measure import Contender
from hocket.trace.traffic import Traffic
from hocket.tune.model import in_order
from hocket.tune.policy import TablePolicy
from hocket.tune.sweep import Sweep
from hocket.tune.table import Table

FINE, COARSE = "mix, per size", "mix, per operation"


class CoarsePolicy(Policy):
    """A policy with one backend per operation and class of types for all sizes: the one with the smallest mean loss."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def best(self, group: Group) -> Mapping[tuple[str, str], str]:
        """Return the backend by (operation, class of types), if they were measured with this number of ranks."""
        best = {}
        for (op, dtypes, num_ranks, busy), sizes in self._table.cells.items():
            if num_ranks != group.size or busy:
                continue
            losses: dict[str, list[float]] = {name: [] for name in group.backends}
            for rows in sizes.values():
                own = {name: rows[name].seconds for name in losses if name in rows}
                for name, seconds in own.items():  # empty if only schedules were measured
                    losses[name].append(seconds / min(own.values()))
            best[op, dtypes] = min((sum(each) / len(each), name) for name, each in losses.items() if each)[1]
        return best

    def choices(self, group: Group) -> Choices:
        return {
            key: in_order(dict.fromkeys((name, *group.backends)))
            for key, name in self.best(group).items()
            if key[0] in CHOOSABLE
        }

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        name = self.best(group)[op, dtypes]
        return "its mean loss over all sizes is the smallest", [RankedCarrier(name, None, "measured")]


@dataclass(frozen=True)
class Chosen:
    """The carrier of one kind of operation, as in `Range.ranking`, and the number of these operations per step."""

    op: str
    nbytes: int
    dtype: str
    count: int
    carrier: str


def policies(table: Table, backends: Sequence[str]) -> dict[str, Policy]:
    """Return the policies to compare: each single backend, and both mixes."""
    singles: dict[str, Policy] = {name: Policy.fixed({"*": name}) for name in backends}
    return singles | {FINE: TablePolicy(table), COARSE: CoarsePolicy(table)}


def sweep_of(traffics: Sequence[Traffic], *, rounds: int = 7, time_limit_s: float = 300.0) -> Sweep:
    """Return a sweep over the operations of some traffic, at the sizes of the traffic and at smaller usual sizes."""
    steps = [step for traffic in traffics for step in traffic.steps]
    own = {max(4, step.nbytes // 4 * 4) for step in steps}
    sizes = sorted({*own, *(nbytes for nbytes in Sweep().sizes if nbytes < max(own))})
    ops = [op for op in Sweep().ops if op in {step.kind for step in steps}]
    return Sweep(ops=ops, sizes=sizes, busy_sizes=(), rounds=rounds, time_limit_s=time_limit_s)


def mix_contenders(comm: Communicator, table: Table, traffics: Sequence[Traffic]) -> list[Contender]:
    """Return one contender per traffic and policy, ready to be measured; called by all ranks.

    Each policy has its own communicator, since a change of policy takes time; all of them use the same arrays. The
    first contender of each traffic is the single backend that the table expects to be the fastest: `measure` also
    compares the first contender with itself, and the gain of a mix must be larger than this noise.

    Raises:
        InvalidState: a replay records another backend than `explain` returns.
    """
    backends = list(comm.backends)
    communicators = {}
    for name, policy in policies(table, backends).items():
        communicators[name] = comm.dup()
        communicators[name].policy = policy
    contenders = []
    for traffic in traffics:
        replay = None
        expected = {name: predicted_seconds(table, traffic, backends, name) or math.inf for name in backends}
        for name in (*sorted(backends, key=expected.__getitem__), FINE, COARSE):
            each = communicators[name]
            replay = Replay(each, traffic, like=replay)
            _check_explained(each, replay)
            contenders.append(Contender.of_call(traffic.name, name, replay))
    return contenders


def predicted_seconds(table: Table, traffic: Traffic, backends: Sequence[str], variant: str) -> float | None:
    """Return the sum of the table's times over the operations of a step, one after the other.

    Args:
        table: table with times for this number of ranks.
        traffic: traffic of the step.
        backends: backends that the mix may choose.
        variant: a name in `policies`.

    Returns:
        Seconds; None if an operation was not measured.
    """
    tuned, policy = TablePolicy(table), policies(table, backends)[variant]
    group = Group(traffic.num_ranks, backends, table.machine.num_hosts)
    total = 0.0
    for step in traffic.steps:
        dtypes = dtype_class(step.kind, step.dtype)
        carrier = policy.explain(group, step.kind, dtypes, step.nbytes)[1][0].carrier
        seconds = tuned.expected_seconds(traffic.num_ranks, carrier, step.kind, dtypes, step.nbytes)
        if seconds is None:
            return None
        total += seconds
    return total


def chosen(table: Table, traffic: Traffic, backends: Sequence[str]) -> list[Chosen]:
    """Return the choices of the mix for each kind of operation of a step, in the order of first use."""
    tuned = TablePolicy(table)
    group = Group(traffic.num_ranks, backends, table.machine.num_hosts)
    counts = Counter((step.kind, step.nbytes, step.dtype) for step in traffic.steps)
    return [
        Chosen(op, nbytes, dtype, count, tuned.explain(group, op, dtype_class(op, dtype), nbytes)[1][0].carrier)
        for (op, nbytes, dtype), count in counts.items()
    ]


def _check_explained(comm: Communicator, replay: Replay) -> None:
    """Run a replay once, and check that `explain` names the carriers that it recorded."""
    replay()
    for record in comm.records()[-len(replay.traffic.steps) :]:
        explained = comm.explain(record.op, record.nbytes, record.dtype, record.reduction or "sum")
        if join_carrier(record.backend, record.algorithm) != explained.chosen:
            raise InvalidState(f"explain() does not match the record of an operation: {explained}, but {record}")
