"""Measure every (operation, class of types, size, backend), interleaved in every round."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product, repeat
from typing import Any

import numpy as np

from hocket import _native
from hocket.backends import declarations, quickest
from hocket.comm import Communicator
from hocket.comm.chooser import OWN
from hocket.comm.policy import Policy, format_nbytes, split_carrier
from hocket.comm.replay import OperationArrays, arguments_of
from hocket.errors import InvalidArgument, UnsupportedDtype
from hocket.measure import Contender, Settings, Team, measure
from hocket.measure.loops import looped
from hocket.measure.rounds import OnRound
from hocket.measure.settling import SettlingBarrier
from hocket.measure.team import gather_over
from hocket.suggestions import check_known
from hocket.trace.traffic import WITH_BLOCKS, WITH_ROOT
from hocket.tune.budget import SET_UP_ROUNDS, Budget
from hocket.tune.contest import LEAST_NBYTES, Contest
from hocket.tune.contest import Key as CellKey
from hocket.tune.fit import Fit, measure_gamma_s
from hocket.tune.machine import this_machine
from hocket.tune.policy import SPLITTABLE, TablePolicy
from hocket.tune.table import Table, TableRow

OPS = (
    "barrier", "all_reduce", "reduce", "scan", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
    "scatter", "send",
)  # fmt: skip
_CLASSES = ("full", "half", "moved")
REDUCTIONS = tuple(op for op in OPS if op in _native.REDUCING_OPS)
SIZES = (16, 256, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
BUSY_SIZES = (4 << 10, 256 << 10, 4 << 20)
_BACKGROUND_NBYTES = 256 << 10
# From this size on, an operation is measured once alone and then as two concurrent operations, like buckets of
# gradients: MPICH over TCP needs twice the time for an all_reduce if another one is in flight.
_IN_PAIRS_FROM = 1 << 20
_LATENCY_BOUND_NBYTES = 64 << 10  # up to this size, the time of a call hardly depends on the size
_SHARE_OF_LIBRARIES = 0.5  # of the time limit; the rest is for schedules and for pairs of libraries
_SHARE_OF_A_STAGE = 0.5  # of the time that is left then
_MOST_NAMED = 5


@dataclass(frozen=True)
class Sweep:
    """The settings of a measurement of a table.

    Args:
        ops: names of operations.
        sizes: sizes in bytes, as in `Record.nbytes`.
        busy_sizes: those of the sizes that are also measured beside a busy second backend.
        rounds: number of rounds; an interval needs at least 6.
        min_sample_s: minimum seconds of a sample.
        time_limit_s: maximum seconds of the measurement. Cells that do not fit are left out, the largest sizes first.
        schedules: whether schedules are measured beside the libraries' own algorithms.
    """

    ops: Sequence[str] = OPS
    sizes: Sequence[int] = SIZES
    busy_sizes: Sequence[int] = BUSY_SIZES
    rounds: int = 7
    min_sample_s: float = 0.003
    time_limit_s: float = 600.0
    schedules: bool = True

    def __post_init__(self) -> None:
        for op in self.ops:
            check_known("operation", op, OPS)
        if not self.sizes or min(self.sizes) < 4 or any(nbytes % 4 for nbytes in self.sizes):
            raise InvalidArgument(f"sizes must be multiples of 4 bytes, not {list(self.sizes)}")
        if self.rounds < 6:
            raise InvalidArgument(f"rounds must be 6 or more, not {self.rounds}: an interval needs 6 values")


def measure_table(comm: Communicator, sweep: Sweep, *, on_round: OnRound | None = None) -> Table:
    """Measure the table and return it on every rank; all ranks call it.

    Args:
        comm: communicator whose backends are compared.
        sweep: settings of the measurement.
        on_round: see `hocket.measure.measure`.
    """
    stage = SweepStage(comm, sweep, on_round)
    alone = [name for name in comm.backends if "+" not in name]
    stage.doing = "each library's own algorithm"
    cells = stage.cells(sweep, alone, _SHARE_OF_LIBRARIES)
    rows = {row.place: row for row in stage.rows(cells, sweep.rounds)}
    stage.doing = "operations split between two libraries"
    rows |= {row.place: row for row in _split_rows(comm, sweep, stage, rows)}
    fits: list[Fit] = []
    if sweep.schedules and comm.size > 1:
        contest = Contest(
            replace(comm._chooser.group, backends=alone),
            sweep.rounds,
            stage.measure_carriers,
            stage.largest(measure_gamma_s()),
        )
        stage.doing = "messages, for the model"
        fits = contest.fit_links([nbytes for nbytes in sweep.sizes if nbytes >= LEAST_NBYTES] or sweep.sizes)
        stage.doing = "schedules"
        rows |= {row.place: row for row in contest.run(list(rows.values()), fits)}
    stage.close()
    if stage.budget.left_out and comm.rank == 0:
        few, rest = ", ".join(stage.budget.left_out[:_MOST_NAMED]), len(stage.budget.left_out) - _MOST_NAMED
        more = f" and {rest} more" if rest > 0 else ""
        warnings.warn(f"hocket tune: not measured within {sweep.time_limit_s:g} s: {few}{more}", stacklevel=2)
    machine = this_machine(comm.backends, comm.num_hosts)
    return Table(machine, tuple(rows.values()), fits=tuple(fits), foreign_busy=stage.foreign_busy)


class SweepStage:
    """Times cells in rounds, all of them in every round.

    Args:
        comm: communicator whose backends are compared.
        sweep: settings: length of a sample and time limit.
        on_round: see `hocket.measure.measure`.

    Attributes:
        doing: what is measured, in a few words, for `on_round`.
        foreign_busy: share of all CPUs' time, 0 to 1, that other programs took during the measurements so far; equal on
            all ranks.
    """

    def __init__(self, comm: Communicator, sweep: Sweep, on_round: OnRound | None = None) -> None:
        self.comm = comm
        self._sweep = sweep
        self._on_round = on_round
        self._maker = _CellMaker(comm)
        self._control = comm.dup()  # own messages must not go over the measured communicator
        self._control.policy = Policy.fixed({"*": quickest(comm.backends, comm.num_hosts)})
        self._gather = gather_over(self._control.all_gather, comm.size)
        self.doing = ""
        self.foreign_busy = 0.0
        self._measured_s = 0.0
        self.budget = Budget(sweep.time_limit_s, self.largest)

    def largest(self, value: float) -> float:
        """Return the largest of all ranks' values; called by all of them."""
        return max(row[0] for row in self._gather([value]))

    def close(self) -> None:
        """Finalize the communicator of this object; called by all ranks."""
        self._control.finalize()

    def seconds(self, cells: Sequence[_Cell], rounds: int) -> list[list[float]]:
        """Return the seconds of an operation in every round, of every cell; equal on all ranks."""
        if not cells:
            return []
        left_s = self.budget.left_s()
        barrier = SettlingBarrier(self._control.barrier, self._gather)
        team = Team([cell.contender for cell in cells], self.comm.rank, barrier, self._gather)
        settings = Settings(
            min_rounds=rounds,
            min_sample_s=self._sweep.min_sample_s,
            core_rounds=0,
            again=False,
            time_limit_s=left_s,
        )
        began_s = time.monotonic()
        measured = measure(team, settings, on_round=self._report)
        took_s = self.largest(time.monotonic() - began_s)
        self._measured_s += took_s
        self.foreign_busy += (measured.foreign_busy - self.foreign_busy) * took_s / self._measured_s
        return [
            [each.seconds[cell.contender.key] / cell.ops_per_iteration for each in measured.rounds] for cell in cells
        ]

    def _report(self, done: int, total: int, state: str, left_s: float | None = None, /) -> None:
        if self._on_round:
            self._on_round(done, total, f"in this step ({self.doing}), {state}" if self.doing else state, left_s)

    def cells(self, sweep: Sweep, backends: Sequence[str], share: float) -> list[_Cell]:
        """Set up the cells of some libraries, size by size, as long as they fit in a share of the budget.

        The time of the next size is predicted from the time of the present one. It grows with the bytes beyond 64 KiB;
        below, it hardly depends on the size. If the set-up and measurement of a size would take too long, this size and
        all larger ones are left out.
        """
        allowed_s, spent_s = share * self.budget.left_s(), 0.0
        found: list[_Cell] = []
        sizes = sorted({0, *sweep.sizes})
        for number, nbytes in enumerate(sizes):
            level = list(self._maker.cells_of_size(nbytes, sweep, backends))
            found += level
            level_s = sum(self._round_s(level))
            spent_s += (sweep.rounds + SET_UP_ROUNDS) * level_s
            following = sizes[number + 1 :]
            if not nbytes or not following:
                continue
            growth = max(1.0, following[0] / max(nbytes, _LATENCY_BOUND_NBYTES))
            if spent_s + level_s * (sweep.rounds + SET_UP_ROUNDS) * growth > allowed_s:
                self.budget.left_out += [f"operations of {format_nbytes(each)}" for each in following]
                break
        return sorted(found, key=lambda cell: (sweep.ops.index(cell.key[0]), _CLASSES.index(cell.key[1])))

    def _round_s(self, cells: Sequence[_Cell]) -> list[float]:
        """Return the seconds of one sample of each cell, predicted from its first calls; equal on all ranks."""
        if not cells:
            return []
        first = map(max, zip(*self._gather([cell.first_s for cell in cells]), strict=True))
        return [
            max(self._sweep.min_sample_s, seconds * cell.ops_per_iteration)
            for seconds, cell in zip(first, cells, strict=True)
        ]

    def rows(self, cells: Sequence[_Cell], rounds: int) -> list[TableRow]:
        """Measure cells, and return a row for each."""
        found = []
        for cell, seconds in zip(cells, self.seconds(cells, rounds), strict=True):
            op, dtypes, nbytes = cell.key
            backend, algorithm = split_carrier(cell.contender.name)
            about = op, dtypes, self.comm.size, nbytes, backend, cell.busy
            found.append(TableRow.of_samples(*about, seconds, algorithm))
        return found

    def measure_carriers(
        self, pairs: Sequence[tuple[CellKey, str]], rounds: int
    ) -> dict[tuple[CellKey, str], list[float]]:
        """Measure pairs (cell, carrier), and return the seconds of every round.

        Pairs that cannot be carried or do not fit into the budget are left out.
        """
        known: list[tuple[tuple[CellKey, str], _Cell]] = []
        for nbytes in sorted({key[2] for key, _ in pairs}):
            level = [pair for pair in pairs if pair[0][2] == nbytes]
            if self.budget.left_s() == 0.0:
                self.budget.left_out += map(_describe, level)
                continue
            cells = [self._maker.make(key, carrier) for key, carrier in level]
            known += [(pair, cell) for pair, cell in zip(level, cells, strict=True) if cell is not None]
        round_s = dict(zip((pair for pair, _ in known), self._round_s([cell for _, cell in known]), strict=True))
        kept = self.budget.affordable(
            known, lambda each: round_s[each[0]], rounds, _SHARE_OF_A_STAGE, lambda each: _describe(each[0])
        )
        times = self.seconds([cell for _, cell in kept], rounds)
        return {pair: seconds for (pair, _), seconds in zip(kept, times, strict=True)}


def _describe(pair: tuple[CellKey, str]) -> str:
    (op, _, nbytes), carrier = pair
    return f"{op} of {format_nbytes(nbytes)} by {carrier}"


@dataclass(frozen=True)
class _Cell:
    key: CellKey
    busy: bool
    contender: Contender  # named as the carrier
    ops_per_iteration: int
    first_s: float  # time of an operation when the cell was set up


def _split_rows(comm: Communicator, sweep: Sweep, stage: SweepStage, rows: Mapping[Any, TableRow]) -> list[TableRow]:
    """Measure operations that are split between two libraries, with shares computed from the time of each alone."""
    both = [name for name in comm.backends if "+" in name]
    if not both:
        return []
    given = comm.policy
    comm.policy = TablePolicy(Table(this_machine(comm.backends, comm.num_hosts), tuple(rows.values())))
    splittable = replace(sweep, ops=[op for op in sweep.ops if op in SPLITTABLE and op != "send"], busy_sizes=())
    try:
        return stage.rows(stage.cells(splittable, both, _SHARE_OF_A_STAGE), sweep.rounds)
    finally:
        comm.policy = given


class _CellMaker:
    """Sets up cells over one communicator.

    All cells share their arrays, one for each role, so that addresses cause no differences between them.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._arrays = cache(lambda role, nbytes, dtypes: _zeros(nbytes, dtypes))

    def cells_of_size(self, nbytes: int, sweep: Sweep, backends: Sequence[str]) -> Iterator[_Cell]:
        """Set up all cells of one size; size 0 has only the barrier."""
        for op in sweep.ops:
            if (op == "barrier") is (nbytes != 0):
                continue
            for dtypes in _CLASSES[:2] if op in REDUCTIONS else _CLASSES[2:]:
                is_also_busy = nbytes in sweep.busy_sizes and dtypes != "half"
                for busy, backend in product((False, True) if is_also_busy else (False,), backends):
                    carrier = self._comm._chooser.carrier_over(backend, op, nbytes)
                    if carrier != backend and dtypes == "half":  # schedules round to 16 bits at every step
                        continue
                    cell = self.make((op, dtypes, nbytes), carrier, busy)
                    if cell is not None:
                        yield cell

    def make(self, key: CellKey, carrier: str, busy: bool = False) -> _Cell | None:
        """Set up a cell and run it; return None if the backend cannot carry it."""
        op, dtypes, nbytes = key
        call = self._bind(key, carrier)
        try:
            call()
        except UnsupportedDtype:
            return None
        began_s = time.perf_counter()
        call()  # the first call included the set-up inside the library
        first_s = time.perf_counter() - began_s
        run, ops_per_iteration = looped(call), 1
        if nbytes >= _IN_PAIRS_FROM and op != "send":
            run, ops_per_iteration = _single_then_pairs(call, self._bind(key, carrier, 1)), 3
        if busy:
            neighbour = _busy_backend(split_carrier(carrier)[0], self._comm.backends)
            if neighbour is None:
                return None
            run, ops_per_iteration = _beside_busy(call, self._comm, neighbour), 1
        case = f"{op} {dtypes} {nbytes}{' busy' if busy else ''}"
        return _Cell(key, busy, Contender(case, carrier, run), ops_per_iteration, first_s)

    def _bind(self, key: CellKey, carrier: str, number: int = 0) -> Callable[..., Any]:
        """Return a function that runs the operation; `number` distinguishes the arrays of concurrent operations."""
        (op, dtypes, nbytes), comm, arrays = key, self._comm, self._arrays
        backend, algorithm = split_carrier(carrier)
        items = arrays(f"one {number}", nbytes, dtypes)
        if op == "send":
            return _exchange(comm, items, arrays("received one", nbytes, dtypes), backend)
        blocks = arrays(f"all {number}", nbytes * comm.size, dtypes) if op in WITH_BLOCKS else None
        received = arrays(f"received {number}", nbytes * comm.size, dtypes) if op == "all_to_all" else None
        given = arguments_of(op, OperationArrays(items, blocks, received), comm.rank, 0 if op in WITH_ROOT else None)
        return partial(getattr(comm, op), *given, backend=backend, algorithm=algorithm or OWN)


def _exchange(comm: Communicator, items: Any, received: Any, backend: str) -> Callable[[], object]:
    """Return a function that sends a message to the next rank of a ring and receives one from the previous rank."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def call() -> None:
        receive = comm.irecv(received, left, backend=backend)
        comm.isend(items, right, backend=backend).wait()
        receive.wait()

    return call


def _zeros(nbytes: int, dtypes: str) -> Any:
    """Return an array of zeros, so that repeated reductions stay finite; it is written, so that every page exists."""
    x = np.ones(nbytes // (2 if dtypes == "half" else 4), np.float16 if dtypes == "half" else np.float32)
    x.fill(0)
    return x


def _single_then_pairs(call: Callable[..., Any], other: Callable[..., Any]) -> Callable[[int], None]:
    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            call()
            works = call(async_op=True), other(async_op=True)
            for work in works:
                work.wait()

    return run


def _busy_backend(backend: str, backends: Iterable[str]) -> str | None:
    """Return the library that runs beside a measured backend: one that ranks must drive, or else shared memory."""
    known = declarations()
    driven = {name for name, each in known.items() if each.needs_driving and not each.is_optional}
    others = [name for name in backends if name != backend]
    return min(others, key=lambda name: (name not in driven, name != "shm"), default=None)


def _beside_busy(call: Callable[[], object], comm: Communicator, other: str) -> Callable[[int], None]:
    """Return a loop whose iterations also run an all_reduce of 256 KiB over another backend, and wait for both."""
    background = _zeros(_BACKGROUND_NBYTES, "full")

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            work = comm.all_reduce(background, backend=other, async_op=True)
            call()
            work.wait()

    return run
