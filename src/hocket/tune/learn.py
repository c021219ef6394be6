"""Correct a table by the times of the operations of a running program."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket._native import Work
from hocket.comm import Communicator
from hocket.comm.policy import CHOOSABLE, Choices, Group, Policy, Range, RankedCarrier, join_carrier, split_carrier
from hocket.errors import InvalidArgument, InvalidType
from hocket.measure.statistics import MIN_VALUES
from hocket.trace import logger
from hocket.tune.contest import candidates
from hocket.tune.find import default_path, table_of
from hocket.tune.fit import Fit
from hocket.tune.machine import this_machine
from hocket.tune.model import KINDS, in_order, typical_link
from hocket.tune.policy import TablePolicy, ranking_for, timed_as
from hocket.tune.table import Table, TableRow, load_table, save_table
from hocket.tune.trial import Lesson, Trial, cut, format_speed
from hocket.tune.window import Cell, TimedKind, Window

_MOST_TRIALS = 4  # at the same time, for different operations
_MOST_CHALLENGERS = 5  # for each cell
_MOST_TABLE_RATIO = 2.0  # to the best time in the table; slower carriers are not tried
_LEAST_SHARE = 0.05  # of the time that the program spends in collectives
_MIN_OPERATIONS = 4  # of a cell in a window
_LONGEST_PAUSE = 64  # windows
_MOST_REPEATS = 2  # of an undecided trial, each time with twice as many pairs
_EVENTS_PER_COLLECTIVE = 4  # events read for each collective of a window, since messages are events, too


@dataclass
class _Round:
    """Simultaneous trials.

    Args:
        trials: trials of different cells.
        ranges: the choices without the trials, by operation and class of types.
        phase: number of the next turn.
    """

    trials: list[Trial]
    ranges: Mapping[tuple[str, str], Sequence[Range]]
    phase: int = 0

    @property
    def num_phases(self) -> int:
        return 2 * max(trial.num_pairs for trial in self.trials)


_Purpose = tuple[_Round, int] | None
"""The purpose of a window: a turn of trials; None: to find the operations that take the most time."""


@dataclass
class _PostedWindow:
    """A window whose times are being reduced over all ranks."""

    window: Window
    purpose: _Purpose
    work: Work


class _CorrectedPolicy(Policy):
    """A communicator's policy, corrected for the operations that were learned.

    Args:
        base: the policy as it was set.
        table: table with rules for the learned operations.
    """

    def __init__(self, base: Policy, table: Table) -> None:
        self._base = base
        self._learned = TablePolicy(table)

    def identity(self, group: Group) -> dict[str, str]:
        return {**self._base.identity(group), "corrected": "by what was learned while it ran"}

    def choices(self, group: Group) -> Choices:
        keys = self._learned.table.ranges
        return {
            (kind, dtypes): self._learned.ranges(group, kind, dtypes)
            if (timed_as(kind), dtypes, group.size) in keys
            else ranges
            for (kind, dtypes), ranges in _all_choices(self._base, group).items()
        }

    def explain(self, group: Group, op: str, dtypes: str, nbytes: int) -> tuple[str, list[RankedCarrier]]:
        is_learned = (timed_as(op), dtypes, group.size) in self._learned.table.ranges
        return (self._learned if is_learned else self._base).explain(group, op, dtypes, nbytes)

    def fitted_link(self, group: Group, backend: str) -> Any:
        return self._base.fitted_link(group, backend)


def _all_choices(policy: Policy, group: Group) -> dict[tuple[str, str], Sequence[Range]]:
    """Return the choices of a policy; operations that it makes no choice for use the backends in their order."""
    choices = policy.choices(group)
    return {kind: choices.get(kind) or in_order(group.backends) for kind in KINDS}


class Learner:
    """Tries other backends and algorithms for a program's operations while it runs, and switches to faster ones.

    All members of a communicator create it; no further call is needed. One window of collectives shows which operations
    take the most time. Then the present carrier of these operations and another one alternate, window by window. All
    ranks agree on the times by an asynchronous all_reduce, which has one window to arrive. So they agree on every
    change, and make it before the same collective. When nothing is left to try, it pauses, each time for longer.

    The time of an operation is that of the rank that waits for no other rank; for an asynchronous operation, the time
    that its callers were blocked (not in `synchronize`). Blocking and asynchronous collectives that name no backend and
    no algorithm are learned. Operations with counts use the choice for equal blocks. Reductions of 16-bit floats keep
    the libraries' own algorithms.

    After a change, sums may be rounded differently, as with any other table. A call that issues a collective may wait
    for a rank that is more than a window behind on this communicator. All members must prepare operations between the
    same collectives. Communicators made from this one have the original policy.

    Args:
        comm: communicator whose policy chooses by a table or by a model.
        window: number of collectives of a window.
        num_pairs: number of pairs of windows in a trial.

    Attributes:
        lessons: results of the trials, oldest first.
        table: times of the communicator's table, if any, and the learned times, with rules for these.

    Raises:
        InvalidArgument: the policy names backends itself, an argument is out of range, or arguments differ between
            ranks.

    Examples:
        >>> learner = hk.tune.Learner(comm, window=64)
        >>> for _ in range(10):
        ...     comm.barrier()
        >>> learner.stop()
        >>> len(learner.lessons), learner.table.path
        (0, 'times learned while running')
    """

    def __init__(self, comm: Communicator, *, window: int = 256, num_pairs: int = MIN_VALUES) -> None:
        if not isinstance(comm, Communicator):
            raise InvalidType(f"comm must be a hocket.Communicator, not {comm!r}")
        problem = _find_problem(comm, window, num_pairs)
        gathered = comm.all_gather_object((problem, window, num_pairs))
        for rank, (each, *_) in enumerate(gathered):
            if each is not None:
                raise InvalidArgument(problem if problem is not None else f"rank {rank}: {each}")
        if len({tuple(rest) for _, *rest in gathered}) > 1:
            given = [rest for _, *rest in gathered]
            raise InvalidArgument(f"window and num_pairs must be equal on all ranks, not {given} by rank")
        self.lessons: list[Lesson] = []
        self._comm = comm
        self._window = window
        self._num_pairs = num_pairs
        self._posted: _PostedWindow | None = None
        self._first = 0
        self._pause_windows = 1
        self._has_paused = True
        self._observes = False
        self._has_read = False  # in this turn
        self._purpose: _Purpose = None
        self._round: _Round | None = None
        self._tried: dict[Cell, set[str]] = {}
        self._repeats: Counter[tuple[Cell, str]] = Counter()
        self._group = comm._chooser.group
        self._adopt_policy(comm.policy)
        if comm.size > 1:
            comm._chooser.on_turn = self._take_turn
            self._set_next_turn(window, observes=True)

    def stop(self) -> None:
        """End learning; all members call it between the same operations. Learned choices stay in the policy.

        Raises:
            HocketError: the communicator is broken.
        """
        self._comm._chooser.on_turn = None
        self._comm._set_turn(0)
        posted, self._posted = self._posted, None
        if self._round is not None and self._comm.policy is self._policy:  # in the middle of a turn
            self._choose(self._round)
        self._round = None
        if posted is not None:
            posted.work.wait()

    def save(self, path: str | Path | None = None) -> Path:
        """Merge the learned rows into a table's file, or write the whole table if the file does not exist.

        Not collective: if each host has a file, one rank on each host calls it.

        Args:
            path: path of the file; None: the table that `hocket.init` reads.

        Returns:
            The path of the file.

        Raises:
            OSError: the file cannot be written.
            TableError: the file is not a table, or is of another machine.
        """
        path = default_path(self._group.num_hosts) if path is None else Path(path)
        table = self.table
        if path.exists():
            seen = tuple(row for row in table.rows if row.source == "run")
            before = TablePolicy(load_table(path)).with_rules()
            table = replace(before.merged(replace(table, rows=seen, rules=(), fits=())), rules=before.rules)
            group = replace(self._group, backends=list(table.machine.backends))
            for lesson in self.lessons:
                if lesson.changed:
                    about = lesson.cell.op, lesson.cell.dtypes
                    ranges = _change(TablePolicy(table).ranges(group, *about), lesson, group)
                    table = table.with_ranges((*about, group.size), ranges)
        save_table(table, path)
        return path

    def __repr__(self) -> str:
        changes = sum(lesson.changed for lesson in self.lessons)
        return f"<hocket.tune.Learner of {self._comm._label}: {len(self.lessons)} trials, {changes} changes>"

    def _take_turn(self) -> None:
        """Read the window that was posted, and plan the next one; called on every member before the same collective.

        If it raises, for example because of a signal while it waits, it is called again before the next collective and
        continues.
        """
        if self._comm.policy is not self._policy:  # the program has set another policy, on all members
            try:
                self._adopt_policy(self._comm.policy)
            except InvalidArgument as error:
                warnings.warn(f"hocket: learning stops: {error}", stacklevel=2)
                self._comm._chooser.on_turn = None
                return
        if self._posted is not None and not self._has_read:
            self._posted.work.wait()
            posted, self._posted = self._posted, None
            self._learn(posted)
        self._has_read = True
        if self._observes:
            self._post()
            self._observes = False
        self._plan()
        self._has_read = False

    def _adopt_policy(self, policy: Policy) -> None:
        self._policy = self._base = policy
        self._round, self._pause_windows = None, 1
        self._tried.clear()
        self._repeats.clear()
        table, num_hosts = table_of(policy, self._group.num_hosts), self._group.num_hosts
        machine = this_machine(self._comm.backends, num_hosts)
        if table is None:
            table = Table(machine, (), "times learned while running")
        elif table.machine.num_hosts != num_hosts:
            table = Table(machine, (), "times learned while running", table.fits)
        # Learned rows may be of libraries that the machine of the table did not have.
        backends = {**table.machine.backends, **machine.backends}
        self.table = replace(table, machine=replace(table.machine, backends=backends))
        self._learned = replace(self.table, rules=())

    def _set_next_turn(self, num_collectives: int, *, observes: bool, purpose: _Purpose = None) -> None:
        self._observes, self._purpose = observes, purpose
        self._first = self._comm._set_turn(num_collectives) - num_collectives

    def _post(self) -> None:
        comm = self._comm
        events = comm._records(_EVENTS_PER_COLLECTIVE * self._window)
        window = Window(events, self._first, self._window, comm._names, comm._program_names())
        work = comm.all_reduce(window.times, "min", async_op=True)
        work._set_background()
        self._posted = _PostedWindow(window, self._purpose, work)

    def _plan(self) -> None:
        """Decide on the purpose of the next window."""
        if self._round is not None and self._round.phase < self._round.num_phases:
            phase, self._round.phase = self._round.phase, self._round.phase + 1
            self._choose(self._round, phase)
            self._set_next_turn(self._window, observes=True, purpose=(self._round, phase))
        elif self._round is not None:  # the times of its last turn are not reduced yet
            self._choose(self._round)
            self._set_next_turn(self._window, observes=False)
        elif self._posted is not None:
            self._set_next_turn(self._window, observes=False)
        elif not self._has_paused:
            self._has_paused = True
            self._set_next_turn(self._pause_windows * self._window, observes=False)
        else:
            self._set_next_turn(self._window, observes=True)

    def _learn(self, posted: _PostedWindow) -> None:
        times = posted.window.agreed()
        if posted.purpose is None:
            if self._round is None:
                self._begin_round(times)
            return
        of_round, phase = posted.purpose
        if of_round is not self._round:  # that round has ended
            return
        for trial in of_round.trials:
            of_cell = [(kind.carrier, *each) for kind, each in times.items() if kind.cell == trial.cell]
            seconds: dict[str, list[float]] = {}
            for carrier, each, _ in of_cell:
                seconds.setdefault(carrier, []).extend(each.tolist())
            trial.add(phase, seconds, all(is_blocking for *_, is_blocking in of_cell))
        if phase == of_round.num_phases - 1 or all(trial.is_hopeless for trial in of_round.trials):
            self._conclude(of_round)

    def _begin_round(self, times: Mapping[TimedKind, tuple[NDArray[np.float64], bool]]) -> None:
        trials: list[Trial] = []
        for cell, kind in _slowest(times):
            if len(trials) == _MOST_TRIALS:
                break
            incumbent = join_carrier(*self._comm._choose(kind.op, kind.dtype, kind.reduction, kind.nbytes))
            challenger = next(self._challengers(cell, kind, incumbent), None)
            if challenger is not None:
                num_pairs = self._num_pairs << self._repeats[cell, challenger]
                trials.append(Trial(cell, kind.nbytes, incumbent, challenger, num_pairs, len(trials)))
        if trials:
            choices = _all_choices(self._policy, self._group)
            about = dict.fromkeys((trial.cell.op, trial.cell.dtypes) for trial in trials)
            self._round, self._pause_windows = _Round(trials, {each: choices[each] for each in about}), 1
        else:
            self._has_paused, self._pause_windows = False, min(2 * self._pause_windows, _LONGEST_PAUSE)

    def _challengers(self, cell: Cell, kind: TimedKind, incumbent: str) -> Iterator[str]:
        """Yield the carriers that were not tried yet.

        First those that are fast by the table or not in it, then those that are fast by the model.
        """
        tried = self._tried.setdefault(cell, set())
        _, ranked = self._policy.explain(self._group, cell.op, cell.dtypes, kind.nbytes)
        best_s = min((each.seconds for each in ranked if each.seconds is not None), default=0.0)
        found = [each.carrier for each in ranked if each.seconds is None or each.seconds <= _MOST_TABLE_RATIO * best_s]
        found += [name for name in self._group.backends if not any(each.backend == name for each in ranked)]
        link = typical_link(self._group.num_hosts)
        typical = [Fit(name, link.alpha_s, link.beta_s, link.gamma_s, 0.0) for name in self._group.backends]
        found += candidates((cell.op, cell.dtypes, kind.nbytes), self._group, self.table.fits or typical)
        for name in dict.fromkeys(found):
            backend, algorithm = split_carrier(name)
            carrier = name if algorithm else self._comm._chooser.carrier_over(backend, cell.op, kind.nbytes)
            if carrier == incumbent or carrier in tried or len(tried) >= _MOST_CHALLENGERS:
                continue
            if backend not in self._group.backends:
                continue
            if self._comm._refuses(backend, kind.op, kind.dtype, kind.reduction, kind.nbytes) is None:
                yield carrier

    def _conclude(self, of_round: _Round) -> None:
        self._round = None
        ranges = dict(of_round.ranges)
        for trial in of_round.trials:
            cell = trial.cell
            about = cell.op, cell.dtypes
            self._repeats[cell, trial.challenger] += 1
            if not trial.is_undecided or self._repeats[cell, trial.challenger] > _MOST_REPEATS:
                self._tried[cell].add(trial.challenger)
            lesson = trial.conclude(self._first + self._window)
            if lesson.changed:
                self._tried[cell].add(trial.incumbent)
                ranges[about] = _change(ranges[about], lesson, self._group)
            self._learned = _with_times(self._learned, trial, self._group.size)
            self.lessons.append(lesson)
            logger.info("%s learned at %s", self._comm._label, lesson)
        for (op, dtypes), each in ranges.items():
            self._learned = self._learned.with_ranges((op, dtypes, self._group.size), each)
        rules = tuple(rule for rule in self.table.rules if rule.key not in self._learned.ranges)
        self.table = replace(self._learned, rules=(*rules, *self._learned.rules))
        self._policy = self._comm._chooser.policy = _CorrectedPolicy(self._base, self._learned)
        choices = self._policy.choices(self._group)
        for op, dtypes in ranges:
            for kind in CHOOSABLE:  # also operations with counts
                if timed_as(kind) == op:
                    self._comm._chooser.set_ranges(self._comm, kind, dtypes, choices[kind, dtypes])

    def _choose(self, of_round: _Round, phase: int | None = None) -> None:
        """Set the carriers of one turn of the trials; without `phase`, the choices without trials."""
        for about, ranges in of_round.ranges.items():
            for trial in of_round.trials:
                if phase is not None and (trial.cell.op, trial.cell.dtypes) == about:
                    first, second = trial.carrier(phase), trial.incumbent
                    ranges = cut(ranges, trial.cell, ranking_for(self._group, (first, second)))
            self._comm._chooser.set_ranges(self._comm, *about, ranges)


def _find_problem(comm: Communicator, window: int, num_pairs: int) -> str | None:
    if not isinstance(window, int) or not 16 <= window <= 1024:
        return f"window must be a number of collectives from 16 to 1024, not {window!r}"
    if not isinstance(num_pairs, int) or num_pairs < MIN_VALUES:
        return f"num_pairs must be {MIN_VALUES} or more, not {num_pairs!r}"
    if comm._chooser.on_turn is not None:
        return f"{comm._label} has a learner already; stop() it first"
    try:
        table_of(comm.policy, comm.num_hosts)
    except InvalidArgument as error:
        return str(error)
    return None


def _change(ranges: Sequence[Range], lesson: Lesson, group: Group) -> Sequence[Range]:
    """Return the ranges after a change: the challenger carries the operations of its cell."""
    speed = "" if lesson.speed is None else f": {format_speed(lesson.speed)} as {lesson.incumbent}"
    ranking = ranking_for(group, (lesson.challenger, lesson.incumbent))
    return cut(ranges, lesson.cell, ranking, f"learned while running{speed}")


def _slowest(times: Mapping[TimedKind, tuple[NDArray[np.float64], bool]]) -> Iterator[tuple[Cell, TimedKind]]:
    """Yield the cells with a considerable share of the time, the largest first, each with its most frequent kind."""
    cells: dict[Cell, list[tuple[int, float, TimedKind]]] = {}
    for kind, (seconds, _) in times.items():
        cells.setdefault(kind.cell, []).append((len(seconds), float(seconds.sum()), kind))
    total_s = {cell: sum(each[1] for each in found) for cell, found in cells.items()}
    least_s = _LEAST_SHARE * sum(total_s.values())
    for cell in sorted(cells, key=lambda each: (-total_s[each], each)):
        if total_s[cell] >= least_s > 0 and sum(each[0] for each in cells[cell]) >= _MIN_OPERATIONS:
            _, _, kind = max(cells[cell], key=lambda each: (each[0], each[2].nbytes, each[2].key))
            yield cell, kind


def _with_times(table: Table, trial: Trial, num_ranks: int) -> Table:
    """Add the times of both carriers to a table, if all their operations were blocking."""
    rows = {row.place: row for row in table.rows}
    about = trial.cell.op, trial.cell.dtypes, num_ranks, trial.nbytes
    for carrier in (trial.incumbent, trial.challenger) if trial.is_blocking else ():
        backend, algorithm = split_carrier(carrier)
        if seconds := trial.seconds(carrier):
            row = TableRow.of_samples(*about, backend, False, seconds, algorithm, "run")
            rows[row.place] = row
    return replace(table, rows=tuple(rows.values()))
