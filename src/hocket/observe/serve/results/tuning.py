"""Tuning tables: what is chosen for each operation, size and number of ranks, and what the second choice would cost."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.comm.policy import range_of
from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource
from hocket.tune.observations import regrets_of
from hocket.tune.policy import TablePolicy
from hocket.tune.table import HEAD, Table, TableRow, load_table


@dataclass(frozen=True)
class TuningTime:
    """A measured time; "carrier" is the library, with its algorithm if it is not the library's own."""

    op: str
    dtypes: str
    num_ranks: int
    nbytes: int
    carrier: str
    is_busy: bool
    seconds: float
    low: float
    high: float
    source: str


@dataclass(frozen=True)
class TuningChoice:
    """The choice at a measured size.

    Args:
        op, dtypes, num_ranks, nbytes: of the operation.
        chosen, chosen_s: the carrier that programs use, and its time; null: it was not measured at this size.
        second, second_s: the fastest of the others.
        cost_s: how much longer an operation would take over the second.
        is_clear: whether the intervals of both are apart.
        reason: of the choice, if the times alone do not explain it.
    """

    op: str
    dtypes: str
    num_ranks: int
    nbytes: int
    chosen: str
    chosen_s: float | None
    second: str
    second_s: float | None
    cost_s: float | None
    is_clear: bool
    reason: str


@dataclass(frozen=True)
class TuningRegret:
    """What a choice of a running program cost by this table: of all these operations together.

    See `hocket.tune.Regret`.
    """

    observations: str
    op: str
    dtypes: str
    num_ranks: int
    nbytes: int
    count: int
    carrier: str
    observed_s: float
    best: str
    best_s: float
    cost_s: float
    is_extrapolated: bool


@dataclass(frozen=True)
class TuningAnswer:
    """The answer.

    Args:
        processor, num_cpus, num_hosts, backends: of the machine.
        hash: of the table's content.
        foreign_busy, is_judged: share of the CPU time that other programs took, and whether that is little enough.
        times: all measured times.
        choices: at each size that was measured while no other library was busy.
        observations: names of the files of observations that were opened with it.
        regrets: what these say.
    """

    processor: str
    num_cpus: int
    num_hosts: int
    backends: dict[str, str]
    hash: str
    foreign_busy: float
    is_judged: bool
    times: list[TuningTime]
    choices: list[TuningChoice]
    observations: list[str]
    regrets: list[TuningRegret]


def _load(file: ResultFile) -> Table:
    return load_table(file.path)


def _make(source: ResultSource) -> TuningAnswer:
    table: Table = source.value
    machine = table.machine
    ruled = TablePolicy(table).with_rules()
    choices = [
        _choice(ruled, (op, dtypes, num_ranks), nbytes, list(rows.values()))
        for (op, dtypes, num_ranks, is_busy), sizes in table.cells.items()
        if not is_busy
        for nbytes, rows in sizes.items()
    ]
    seen = source.others("observations")
    regrets = [
        TuningRegret(
            each.name, row.op, row.dtypes, row.num_ranks, row.nbytes, row.count, row.carrier, row.median_s,
            regret.best, regret.best_s, regret.seconds, regret.is_extrapolated,
        )
        for each in seen
        for regret in regrets_of(each.value.rows, table)
        for row in [regret.observation]
    ]  # fmt: skip
    return TuningAnswer(
        machine.processor, machine.num_cpus, machine.num_hosts, dict(machine.backends), table.hash, table.foreign_busy,
        table.is_judged, [_time(row) for row in table.rows], choices, [each.name for each in seen], regrets,
    )  # fmt: skip


def _time(row: TableRow) -> TuningTime:
    return TuningTime(
        row.op, row.dtypes, row.num_ranks, row.nbytes, row.carrier, row.busy, row.seconds, row.low, row.high, row.source
    )


def _choice(table: Table, key: tuple[str, str, int], nbytes: int, rows: list[TableRow]) -> TuningChoice:
    found = range_of(table.ranges[key], nbytes)
    by_carrier = {row.carrier: row for row in rows}
    chosen = by_carrier.get(found.ranking[0])
    second = min((row for row in rows if row is not chosen), key=lambda row: row.seconds, default=None)
    return TuningChoice(
        *key,
        nbytes,
        found.ranking[0],
        chosen.seconds if chosen else None,
        second.carrier if second else "",
        second.seconds if second else None,
        second.seconds - chosen.seconds if chosen and second else None,
        chosen is not None and second is not None and chosen.high < second.low,
        found.reason,
    )


RESULT = ResultKind(
    "tuning", "a tuning table", "hocket tune run --output FILE", HEAD, TuningAnswer, _load, _make
)  # fmt: skip
