"""Times of a recorded run's operations, in a file; and what they correct in a table.

`hocket observe export RUN times.observations.json` writes such a file; `hocket tune learn --from` reads it, or the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median

from hocket import _native
from hocket.comm.policy import LARGEST_NBYTES, Group, join_carrier, range_of
from hocket.errors import TableError
from hocket.measure.statistics import MIN_VALUES
from hocket.tune.policy import TablePolicy, seconds_at
from hocket.tune.table import Table, TableRow
from hocket.typed_json import record_from
from hocket.versioned_json import Head
from hocket.whole_file import write_text

HEAD = Head("hocket observations, version ", 1, TableError, title="a file of observations", most_nbytes=256 << 20)
_LARGEST_NUMBER_OF_RANKS = 1 << 20
_DTYPES = ("moved", "half", "full")
_RUN = "run"


@dataclass(frozen=True)
class Observation:
    """The times of one kind of operation in a running program.

    Args:
        op: name of the operation.
        dtypes: class of types, as in `TableRow`.
        num_ranks, num_hosts: of the communicator.
        nbytes: as in `Record.nbytes`.
        backend: that carried it.
        algorithm: name of the schedule; empty: the library's own algorithm.
        seconds: of single operations, each on the rank that came last, whose time contains no waiting.
        count: how many there were; `seconds` may have only some of them.

    Examples:
        >>> seen = hk.tune.Observation("all_reduce", "full", 2, 1, 1024, "shm", "", (2e-6, 3e-6, 4e-6), 3)
        >>> seen.carrier, seen.median_s
        ('shm', 3e-06)
    """

    op: str
    dtypes: str
    num_ranks: int
    num_hosts: int
    nbytes: int
    backend: str
    algorithm: str
    seconds: tuple[float, ...]
    count: int

    @property
    def carrier(self) -> str:
        """Backend and algorithm as in `Range.ranking`."""
        return join_carrier(self.backend, self.algorithm)

    @property
    def median_s(self) -> float:
        """The median time."""
        return median(self.seconds)


@dataclass(frozen=True)
class Observations:
    """The times of a run.

    Args:
        hosts: names of its hosts.
        rows: one for each operation, class of types, number of ranks, size and carrier.

    Examples:
        >>> hk.tune.Observations(("node-1",), ()).rows
        ()
    """

    hosts: tuple[str, ...]
    rows: tuple[Observation, ...]


@dataclass(frozen=True)
class Regret:
    """What a choice cost, by a table.

    Args:
        observation: what was seen.
        best: the carrier that is the fastest by the table.
        best_s: its time in the table, interpolated between sizes.
        seconds: of all these operations together: their time beyond that of the best carrier, at least 0.
        is_extrapolated: whether the table has no times of the best carrier at this size or a smaller one, or none at
            this size or a larger one: then its time is a guess, and so is the cost.

    Examples:
        >>> seen = hk.tune.Observation("all_reduce", "full", 2, 1, 1024, "shm", "", (3e-6,) * 6, 1000)
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory", "mpi": "MPICH"})
        >>> row = hk.tune.Row("all_reduce", "full", 2, 1024, "mpi", False, 2e-6, 1.9e-6, 2.1e-6)
        >>> (regret,) = hk.tune.regrets_of([seen], hk.tune.Table(machine, (row,)))
        >>> regret.best, round(regret.seconds, 6)
        ('mpi', 0.001)
    """

    observation: Observation
    best: str
    best_s: float
    seconds: float
    is_extrapolated: bool


@dataclass(frozen=True)
class LearnedTable:
    """A table with what a run has shown.

    Args:
        table: the corrected table.
        used: the observations that it has now.
        unused: the others: too few of them, another number of hosts, or a backend that the table does not have.
        changes: operations, classes of types and numbers of ranks for which another carrier is chosen now at some size.

    Examples:
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> hk.tune.learn_from(hk.tune.Table(machine, ()), []).changes
        ()
    """

    table: Table
    used: tuple[Observation, ...]
    unused: tuple[Observation, ...]
    changes: tuple[tuple[str, str, int], ...]


def save_observations(observations: Observations, path: str | Path) -> None:
    """Write observations, whole or not at all.

    Examples:
        >>> hk.tune.save_observations(hk.tune.Observations(("node-1",), ()), "seen.json")
        >>> hk.tune.load_observations("seen.json").hosts
        ('node-1',)
    """
    rows = ",\n".join(f"  {json.dumps(asdict(row))}" for row in observations.rows)
    head = json.dumps({HEAD.key: HEAD.text, "hosts": list(observations.hosts)})[:-1]
    write_text(Path(path), f'{head},\n "rows": [\n{rows}\n ]\n}}\n')


def load_observations(path: str | Path) -> Observations:
    """Read observations.

    Raises:
        TableError: the file cannot be read, or is not one of observations; names the file and the row.

    Examples:
        >>> hk.tune.save_observations(hk.tune.Observations((), ()), "nothing.json")
        >>> hk.tune.load_observations("nothing.json").rows
        ()
    """
    _, content = HEAD.load(path)
    hosts, rows = content.get("hosts"), content.get("rows")
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts) or not isinstance(rows, list):
        raise TableError(f'{path}: "hosts" must be a list of names, and "rows" a list')
    return Observations(tuple(hosts), tuple(_checked(row, f"{path}, row {number}") for number, row in enumerate(rows)))


def _checked(content: object, place: str) -> Observation:
    try:
        row = record_from(Observation, content)
    except KeyError as error:
        raise TableError(f"{place}: {error} is missing") from None
    except TypeError as error:
        raise TableError(f"{place}: {error}") from None
    problems = {
        f"op {row.op!r:.80} is no operation": row.op not in _native.OP_NAMES,
        f"dtypes must be one of {', '.join(_DTYPES)}, not {row.dtypes!r:.80}": row.dtypes not in _DTYPES,
        f"num_ranks {row.num_ranks} is out of range": not 1 <= row.num_ranks <= _LARGEST_NUMBER_OF_RANKS,
        f"num_hosts {row.num_hosts} is out of range": not 1 <= row.num_hosts <= row.num_ranks,
        f"nbytes {row.nbytes} is out of range": not 0 <= row.nbytes <= LARGEST_NBYTES,
        "seconds must be positive numbers, at least one": not row.seconds
        or not all(isfinite(each) and each > 0 for each in row.seconds),
        f"count {row.count} is less than the number of seconds": row.count < len(row.seconds),
    }
    for text, is_wrong in problems.items():
        if is_wrong:
            raise TableError(f"{place}: {text}")
    return row


def regrets_of(rows: Iterable[Observation], table: Table) -> tuple[Regret, ...]:
    """Return what the choices of a run cost by a table, the worst first; without operations that it has no times of.

    Args:
        rows: what was seen.
        table: of the same machine.

    Examples:
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> hk.tune.regrets_of([], hk.tune.Table(machine, ()))
        ()
    """
    found = []
    for row in rows:
        if row.num_hosts != table.machine.num_hosts:
            continue
        points: dict[str, list[tuple[int, float]]] = {}
        for nbytes, measured in table.cells.get((row.op, row.dtypes, row.num_ranks, False), {}).items():
            for carrier, each in measured.items():
                points.setdefault(carrier, []).append((nbytes, each.seconds))
        times = {carrier: seconds_at(points[carrier], row.nbytes) for carrier in sorted(points)}
        if times:
            best = min(times, key=lambda carrier: times[carrier])
            cost_s = 0.0 if best == row.carrier else max(row.median_s - times[best], 0.0) * row.count
            is_extrapolated = not points[best][0][0] <= row.nbytes <= points[best][-1][0]
            found.append(Regret(row, best, times[best], cost_s, is_extrapolated))
    return tuple(sorted(found, key=lambda each: -each.seconds))


def learn_from(table: Table, observations: Sequence[Observation]) -> LearnedTable:
    """Return a table with the observed times; its choices change where two carriers were observed at one size.

    A time of a running program and one of `hocket tune run` are of different conditions, so they are not compared: of
    each size, times of runs decide if there are at least two, else those of the sweep.

    Args:
        table: of the same machine.
        observations: of a run.

    Examples:
        >>> machine = hk.tune.Machine("a processor", 2, 1, {"shm": "shared memory"})
        >>> seen = hk.tune.Observation("all_reduce", "full", 2, 1, 1024, "shm", "", (3e-6,) * 6, 1000)
        >>> learned = hk.tune.learn_from(hk.tune.Table(machine, ()), [seen])
        >>> [(row.seconds, row.source) for row in learned.table.rows]
        [(3e-06, 'run')]
    """
    used = tuple(
        row
        for row in observations
        if len(row.seconds) >= MIN_VALUES
        and row.num_hosts == table.machine.num_hosts
        and row.backend in table.machine.backends
    )
    rows = tuple(
        TableRow.of_samples(
            row.op, row.dtypes, row.num_ranks, row.nbytes, row.backend, False, row.seconds, row.algorithm, _RUN
        )
        for row in used
    )
    before = TablePolicy(table).with_rules()
    merged = replace(before.merged(replace(before, rows=rows, rules=(), fits=())), rules=before.rules, path=table.path)
    compared = {row.key for row in _compared(merged)}
    kept = tuple(rule for rule in before.rules if rule.key not in compared)
    fair = TablePolicy(replace(merged, rows=_fair_rows(merged), rules=kept)).with_rules()
    learned = replace(merged, rules=fair.rules)
    unused = tuple(row for row in observations if row not in used)
    changes = tuple(key for key in sorted(compared) if _differ(before, learned, key))
    return LearnedTable(learned, used, unused, changes)


@dataclass(frozen=True)
class _ComparedCell:
    """Times of one size that can be compared with each other."""

    key: tuple[str, str, int]
    nbytes: int


def _compared(table: Table) -> list[_ComparedCell]:
    """Where at least two carriers were observed in runs."""
    return [
        _ComparedCell((op, dtypes, num_ranks), nbytes)
        for (op, dtypes, num_ranks, busy), sizes in table.cells.items()
        for nbytes, rows in sizes.items()
        if not busy and sum(row.source == _RUN for row in rows.values()) > 1
    ]


def _fair_rows(table: Table) -> tuple[TableRow, ...]:
    compared = {(*cell.key, cell.nbytes) for cell in _compared(table)}
    return tuple(
        row
        for row in table.rows
        if row.busy or (row.source == _RUN) == ((row.op, row.dtypes, row.num_ranks, row.nbytes) in compared)
    )


def _differ(before: Table, after: Table, key: tuple[str, str, int]) -> bool:
    """Return whether another carrier is the first choice at a size of the second table."""
    op, dtypes, num_ranks = key
    sizes = {row.nbytes for row in after.rows if (row.op, row.dtypes, row.num_ranks) == key}
    group = Group(num_ranks, list(after.machine.backends), after.machine.num_hosts)
    ranges = [TablePolicy(table).ranges(group, op, dtypes) for table in (before, after)]
    return any(len({range_of(each, nbytes).ranking[0] for each in ranges}) > 1 for nbytes in sizes)
