"""What was chosen for the operations of a run, why, and what the next best choice would have taken.

A communicator's recorder says which policy chooses for it: a table, with its hash, or a model. If the table is still
there, it is asked again; it answers as it did in the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hocket.comm.policy import CHOOSABLE, Group, Policy, RankedCarrier, dtype_class, join_carrier
from hocket.errors import TableError
from hocket.observe.analysis.breakdown import BreakdownRow, breakdown
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.totals import RunTotals
from hocket.tune.model import ModelPolicy
from hocket.tune.observations import Observation, Observations
from hocket.tune.policy import TablePolicy
from hocket.tune.table import load_table
from hocket.typed_json import record_from

_DTYPE = "float32"
"""Of operations whose type is not known: totals have none, and times of most types are alike."""
_MOST_RANKS, _MOST_BACKENDS = 1 << 20, 64
_IN_RUN = "in this run"


@dataclass(frozen=True)
class RunChoice:
    """What carried the operations of one kind, size class and number of ranks, and what else could have.

    Args:
        op: name of the operation.
        least_nbytes, most_nbytes: the sizes of its class.
        num_ranks: size of the communicators; 0: unknown.
        carrier: the library, and the schedule if one was used.
        is_foreign: whether the program called this library itself, and not hocket.
        count: number of operations, each rank counted.
        seconds: from their begin to their end, summed up over all ranks; they have waits for late ranks, too.
        median_s: time of one operation on the rank that came last, which waits for nobody; None: not known, as of
            asynchronous operations.
        expected_s: time of one operation by the table or the model; None: not known.
        source: origin of `expected_s`, such as "measured" or "modelled".
        why: the reason of the choice, in words; "": not recorded.
        other: the next best carrier; "": none is known.
        other_s: its time for one operation; None: not known.
        other_source: origin of `other_s`; "in this run": the median of other operations of the same size and type.
        saved_s: how much longer all operations would have taken with the other carrier, by measured times; negative:
            how much shorter. None: not known, for example because `expected_s` or `other_s` is of a model.

    Examples:
        >>> import sys
        >>> from hocket import observe
        >>> program = "import hocket as hk; [each.barrier() for each in [hk.init(backends='shm')] * 2]"
        >>> _ = observe.record_run([sys.executable, "-c", program], "run-to-choose")
        >>> run = observe.open_run("run-to-choose")
        >>> found = observe.choices_of(observe.totals_of(run), observe.observations_of(run))
        >>> [(row.op, row.carrier, row.count) for row in found]
        [('barrier', 'shm', 2)]
    """

    op: str
    least_nbytes: int
    most_nbytes: int
    num_ranks: int
    carrier: str
    is_foreign: bool
    count: int
    seconds: float
    median_s: float | None
    expected_s: float | None
    source: str
    why: str
    other: str
    other_s: float | None
    other_source: str
    saved_s: float | None


@dataclass(frozen=True)
class _RecordedGroup:
    size: int
    backends: tuple[str, ...]
    num_hosts: int
    ranks_per_host: int
    ranks_per_domain: int


@dataclass(frozen=True)
class _RecordedPolicy:
    identity: dict[str, str]
    group: _RecordedGroup


def choices_of(totals: RunTotals, observations: Observations) -> tuple[RunChoice, ...]:
    """Return what was chosen, in the order of `breakdown`.

    Args:
        totals: from `totals_of`.
        observations: from `observations_of`.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-no-choice")
        >>> run = observe.open_run("run-of-no-choice")
        >>> observe.choices_of(observe.totals_of(run), observe.observations_of(run))
        ()
    """
    recorded: dict[int, set[str]] = {}
    for number in numbers_of_program(totals.communicators):
        each = totals.communicators[number]
        recorded.setdefault(each.size, set()).update(each.policies)
    policies = {text: _read_policy(text) for text in set().union(*recorded.values())}
    return tuple(
        _choice(row, observations.rows, [policies[text] for text in recorded.get(row.num_ranks, ())])
        for row in breakdown(totals)
    )


def _choice(row: BreakdownRow, observed: Sequence[Observation], recorded: Sequence[_ReadPolicy]) -> RunChoice:
    carrier = join_carrier(row.library, row.algorithm)
    alike = [
        each for each in observed
        if not row.is_foreign and (each.op, each.num_ranks) == (row.op, row.num_ranks)
        and row.least_nbytes <= each.nbytes <= row.most_nbytes
    ]  # fmt: skip
    own = max((each for each in alike if each.carrier == carrier), key=lambda each: each.count, default=None)
    expected_s, source, other, other_s, other_source, saved_s = None, "", "", None, "", None
    why = "the program called this library itself" if row.is_foreign else ""
    if not row.is_foreign and row.op in CHOOSABLE and row.count and len(recorded) == 1:
        nbytes = own.nbytes if own else row.nbytes // row.count
        dtypes = own.dtypes if own else dtype_class(row.op, _DTYPE)
        why, candidates = recorded[0].explain(row.op, dtypes, nbytes)
        times = {each.carrier: (each.seconds, each) for each in candidates if each.seconds is not None}
        expected_s, expected = times.pop(carrier, (None, None))
        source = expected.source if expected else ""
        if times:
            other = min(times, key=lambda name: times[name][0])
            other_s, best_other = times[other]
            other_source = best_other.source
            if expected_s is not None and expected and expected.is_measured and best_other.is_measured:
                saved_s = row.count * (other_s - expected_s)
    elif len(recorded) > 1 and not row.is_foreign:
        why = f"{len(recorded)} policies chose for communicators of {row.num_ranks} ranks"
    # What the same run has done in two ways is known best.
    rivals = [each for each in alike if own and each.carrier != carrier and _is_alike(each, own)]
    if own and rivals:
        best = min(rivals, key=lambda each: each.median_s)
        other, other_s, other_source = best.carrier, best.median_s, _IN_RUN
        saved_s = row.count * (best.median_s - own.median_s)
    return RunChoice(
        row.op, row.least_nbytes, row.most_nbytes, row.num_ranks, carrier, row.is_foreign, row.count, row.seconds,
        own.median_s if own else None, expected_s, source, why, other, other_s, other_source, saved_s,
    )  # fmt: skip


def _is_alike(one: Observation, other: Observation) -> bool:
    return (one.nbytes, one.dtypes, one.num_hosts) == (other.nbytes, other.dtypes, other.num_hosts)


@dataclass(frozen=True)
class _ReadPolicy:
    """A policy of a run; where it cannot be asked, `note` says why, else what is to be said besides its reason."""

    policy: Policy | None
    group: Group | None
    note: str

    def explain(self, op: str, dtypes: str, nbytes: int) -> tuple[str, Sequence[RankedCarrier]]:
        """Return the reason of its choice, and the carriers with their times."""
        if self.policy is None or self.group is None:
            return self.note, []
        try:
            why, candidates = self.policy.explain(self.group, op, dtypes, nbytes)
        except (ArithmeticError, LookupError, TypeError, ValueError):  # facts of a group that no program has
            return "", []
        return why + self.note, candidates


def _read_policy(recorded: str) -> _ReadPolicy:
    try:
        known = record_from(_RecordedPolicy, json.loads(recorded))
    except (ValueError, TypeError, KeyError, RecursionError):
        return _ReadPolicy(None, None, "")
    group = known.group
    if not (1 <= group.num_hosts <= group.size <= _MOST_RANKS and 0 < len(group.backends) <= _MOST_BACKENDS):
        return _ReadPolicy(None, None, "")
    policy, reason = _policy_of(known.identity)
    asked = Group(group.size, group.backends, group.num_hosts, group.ranks_per_host, group.ranks_per_domain)
    corrected = f"; corrected {known.identity['corrected']}" if "corrected" in known.identity else ""
    return _ReadPolicy(policy, asked, reason or corrected)


def _policy_of(identity: dict[str, str]) -> tuple[Policy | None, str]:
    """The policy that a run has recorded; None, and why it cannot be asked."""
    name = identity.get("policy", "")
    if name == "ModelPolicy":
        return ModelPolicy(identity.get("reason", "")), ""
    if name == "Policy.fixed":
        return None, f"the program fixed it: {identity.get('backends', '')}"
    if name == "DefaultPolicy":
        return None, "the first of the communicator's backends"
    if name != "TablePolicy":
        return None, f"a policy of the program: {name}"
    path = Path(identity.get("table", ""))
    try:
        table = load_table(path) if path.is_file() else None
    except (TableError, OSError):
        table = None
    if table is None or table.hash != identity.get("hash"):
        state = "is not here" if table is None else "has changed since"
        return None, f"the table {path}, which {state}"
    return TablePolicy(table), ""
