"""The owner of a store in ClickHouse: the one process that writes the database; see `writing` and `lease`."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Event, Lock, RLock, Thread
from time import monotonic
from typing import Any

from hocket.errors import HocketError, InvalidArgument, PeerFailure, RecorderError, ResourceExhausted
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.clickhouse.address import ClickHouseAddress
from hocket.observe.store.clickhouse.lease import RENEW_S, Lease
from hocket.observe.store.clickhouse.old_rows import OldRows
from hocket.observe.store.clickhouse.run import ClickHouseRun
from hocket.observe.store.clickhouse.run_list import ListedRuns
from hocket.observe.store.clickhouse.server import ClickHouseServer
from hocket.observe.store.clickhouse.tables import DERIVED, make_tables
from hocket.observe.store.clickhouse.writing import RoundRows, RoundWriter
from hocket.observe.store.columns import TABLE_COLUMNS
from hocket.observe.store.interface import IngestAnswer, RunInStore, answer_waiting
from hocket.observe.store.owner import MOST_QUEUED_NBYTES, Retention
from hocket.observe.store.queued_rows import RowQueue
from hocket.observe.store.segments import check_run_name
from hocket.observe.store.senders import SenderRows
from hocket.observe.store.store_problems import StoreProblems

_GATHER_S = 0.2
"""Few rows wait so long for others: ClickHouse wants few and large inserts."""
_TIDY_S = 30.0
_CLOSE_S = 30.0
_ROUND_S, _LOOK_S = 30.0, 0.1


class ClickHouseOwner:
    """Owns a database until it is closed; a context manager.

    Args:
        address: of it; made if it does not exist.
        retention: what is removed when.
        most_queued_nbytes: rows that wait for being stored have at most so many bytes.

    Raises:
        AuthenticationError: the server does not know the user, or the password is wrong.
        InvalidArgument: the user may not make tables, or not read the sizes that retention needs, or the folder for the
            token cannot be made.
        InvalidState: another process owns the database; names it.
        MissingPackage: `clickhouse_connect` is not installed.
        PeerFailure: the server cannot be reached.
        RecorderError: the database has tables of another version.
    """

    def __init__(
        self, address: ClickHouseAddress, *, retention: Retention | None = None,
        most_queued_nbytes: int = MOST_QUEUED_NBYTES,
    ) -> None:  # fmt: skip
        retention = retention or Retention()
        arrow().set_cpu_count(1)
        self.folder, self.place = address.folder, address.shown
        _make_folder(self.folder)
        ident = f"hocket-{secrets.token_hex(8)}"
        self._database = address.database
        self._server = ClickHouseServer(address, ident)
        make_tables(self._server, self._database)
        self._old = OldRows(self._server, self._database, retention)
        self._lease = Lease(self._server, self._database, ident)
        self._lease.take()
        self._runs: dict[str, ClickHouseRun] = {}
        self._runs_lock = Lock()
        self._problems = StoreProblems()
        self._changed = Condition()
        self._queue: RowQueue[ClickHouseRun] = RowQueue(self._changed, most_queued_nbytes)
        self._round: list[RoundRows] = []
        self._lost: Exception | None = None
        self._is_stale = False
        """Whether it has to be read again what is stored."""
        self._retired: dict[tuple[str, str], int] = {}
        """The batch that replaced a table as a whole when it was last looked."""
        self._is_closing = Event()
        self._inserting = RLock()
        """Held by whoever changes what is stored: by the writer for a round, which may last."""
        self._writer = RoundWriter(self._server, self._database, self._lease, ident, self._is_closing, self._note_lost)
        self._threads = [
            Thread(target=each, name=name, daemon=True)
            for each, name in ((self._renew, "lease"), (self._write, "writer"), (self._tidy, "tidy"))
        ]
        self._threads[0].start()  # what follows may last
        try:
            with self._inserting:
                self._writer.repair()
                self._list = ListedRuns(self._server, self._database, ident)
        except BaseException:
            self._is_closing.set()
            self._threads[0].join(_CLOSE_S)
            self._lease.give_up()
            raise
        for each in self._threads[1:]:
            each.start()

    def __enter__(self) -> ClickHouseOwner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store what waits, as far as the server is there, and give the database up."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        with self._changed:
            self._changed.notify_all()
        for each in self._threads:
            each.join(_CLOSE_S)
        try:
            self._lease.give_up()
        except HocketError as error:
            self.report("lease", str(error))  # it ends by itself
        self._server.close()

    def run_names(self) -> list[str]:
        """Return the names of all runs, the one that was made last first."""
        return self._list.names()

    def add_run(self, name: str, description: dict[str, Any]) -> bool:
        """Make a run, and return whether it is new; see `RunStore.add_run`."""
        check_run_name(name)
        known = self._list.find(name)
        if known is None:
            with self._excluding_rounds():
                self._lease.check()
                if (known := self._list.find(name)) is None:
                    self._list.add(name, description)
                    return True
        if description and known.description != json.loads(json.dumps(description)):
            raise InvalidArgument(f"the store has another run {name}: give this one another name")
        return False

    def find_run(self, name: str) -> ClickHouseRun | None:
        """Return a run; None if the store has no run of this name.

        Raises:
            InvalidArgument: the name is not valid.
            PeerFailure: the server cannot be reached.
        """
        check_run_name(name)
        with self._runs_lock:
            if name in self._runs:
                return self._runs[name]
        known = self._list.find(name)
        if known is None:
            return None
        run = ClickHouseRun(self._server, self._database, name, known.description, self._replace)
        with self._runs_lock:
            return self._runs.setdefault(name, run)

    def remove_run(self, name: str) -> None:
        """Remove a run and all its rows; whoever asks it just now may fail.

        Raises:
            InvalidArgument: the name is not valid.
            PeerFailure: the server cannot be reached.
        """
        check_run_name(name)
        with self._excluding_rounds():
            with self._runs_lock:
                self._runs.pop(name, None)
            if self._list.find(name) is None:
                return
            self._lease.check()
            for table in (*TABLE_COLUMNS, "rollups", "senders"):
                self._server.remove(table, "run = {run:String}", {"run": name})
            self._list.remove(name)  # last: what is left of a run that was half removed is removed again

    def is_loaded(self, name: str) -> bool:
        """Return whether the store has all of a run that a loader has brought."""
        known = self._list.find(name)
        return known is not None and known.is_loaded

    def mark_loaded(self, name: str) -> None:
        """Note that the store has all of a run that a loader has brought."""
        with self._excluding_rounds():
            self._lease.check()
            self._list.mark_loaded(name)

    def report(self, place: str, problem: str) -> None:
        """Show a problem of something that goes on beside the store; "": it is gone."""
        self._problems.report(place, problem)

    @property
    def problems(self) -> dict[str, str]:
        """What went wrong while nobody asked, by place: it is tried again."""
        return self._problems.listed()

    def submit(
        self, run: RunInStore, table: str, sender: str, first_row: int, rows: Any, nbytes: int
    ) -> Future[IngestAnswer]:
        """Have rows stored, unless they already are; see `RunStore.submit`.

        Raises:
            PeerFailure: the server is away.
        """
        assert isinstance(run, ClickHouseRun)
        piece = SenderRows(sender, first_row, rows)
        with self._changed:
            if self._is_closing.is_set():
                raise ResourceExhausted("the store is being closed")
            if self._lost is not None:
                raise _away(self._lost)
            if self._is_stale:
                raise ResourceExhausted("what is stored is being read again: send it again later")
            with self._runs_lock:
                if self._runs.get(run.name) is not run:
                    raise InvalidArgument(f"run {run.name} was removed")
            return self._queue.submit(run, table, piece, nbytes)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._queue.rows and not self._is_stale and not self._is_closing.is_set():
                    self._changed.wait()
                if self._is_closing.is_set() and (self._is_stale or not self._queue.rows):
                    return
                if not self._is_stale:
                    self._queue.gather(_GATHER_S, self._is_closing)
                taken = self._queue.take()
                self._round = taken
            try:
                with self._inserting:
                    if self._is_stale:
                        with self._changed:  # what was claimed before has no claim any more
                            taken += self._queue.take()
                        self._restore()
                        again = ResourceExhausted("what is stored was read again: send it again")
                        for each in taken:
                            answer_waiting(each.done, again)
                    else:
                        self._write_round(taken)
            except Exception as error:  # the thread must go on: what is stored is read again
                self._fail(taken, error)
                self._is_closing.wait(1.0)
            with self._changed:
                self._queue.release(taken)
                self._round = []

    def _write_round(self, taken: list[RoundRows]) -> None:
        with self._runs_lock:
            there = [each for each in taken if self._runs.get(each.run.name) is each.run]
        for each in taken:
            if each not in there:
                answer_waiting(each.done, InvalidArgument(f"run {each.run.name} was removed"))
        refused: dict[tuple[int, str, str], Exception] = {}
        for each, error in self._writer.write(there):
            if error is None:
                rows = each.piece.rows.num_rows
                answer_waiting(each.done, IngestAnswer(each.piece.after, int(rows)))
            else:
                refused[id(each.run), each.table, each.piece.sender] = error
                answer_waiting(each.done, error)
                each.run.senders.give_up(each.table, each.piece.sender)
        if refused:
            self._refuse_following(refused)

    def _refuse_following(self, refused: dict[tuple[int, str, str], Exception]) -> None:
        """Refuse queued rows that count on others, which were refused."""
        with self._changed:
            late = self._queue.drop(lambda each: (id(each.run), each.table, each.piece.sender) in refused)
            for each in late:
                each.run.senders.give_up(each.table, each.piece.sender)
        for each in late:
            answer_waiting(each.done, refused[id(each.run), each.table, each.piece.sender])

    def _fail(self, taken: list[RoundRows], error: Exception) -> None:
        """Nobody knows what of these rows is stored: their senders ask again, after it has been read."""
        with self._changed:
            self._is_stale = True
            failed = [*taken, *self._queue.drop(lambda _: True)]
        self.report("ClickHouse", f"{type(error).__name__}: {error}")
        if not isinstance(error, HocketError):
            error = RecorderError(f"the rows cannot be stored: {type(error).__name__}: {error}")
        for each in failed:
            answer_waiting(each.done, _away(error))

    def _restore(self) -> None:
        """Read again what is stored, as soon as the lease is there."""
        self._lease.check()
        self._writer.repair()
        self._list.reload()
        with self._runs_lock:
            for name in [each for each in self._runs if self._list.find(each) is None]:
                del self._runs[name]
            runs = [*self._runs.values()]
        for run in runs:
            run.reload()
        with self._changed:
            self._is_stale = False
        self._note_lost(None)

    def _note_lost(self, error: Exception | None) -> None:
        with self._changed:
            self._lost = error
            waiting = [*self._round, *self._queue.rows]
        if error is not None:
            self.report("ClickHouse", str(error))
            for each in waiting:  # they are stored later, and whoever sends them again is told so
                answer_waiting(each.done, _away(error))
        else:
            self.report("ClickHouse", "")

    def _renew(self) -> None:
        while not self._is_closing.wait(RENEW_S):
            try:
                if self._lease.is_held:
                    self._lease.renew()
                else:
                    self._take_again()
            except Exception as error:  # the thread must go on
                self.report("lease", str(error))
            else:
                self.report("lease", "")

    def _take_again(self) -> None:
        """Take the lease after it was over: another owner may have come and gone, so what is stored is read again."""
        with self._inserting:
            with self._changed:
                self._is_stale = True
                self._changed.notify_all()
            self._lease.take()

    @contextmanager
    def _excluding_rounds(self) -> Iterator[None]:
        """Change what is stored while no round is written; a round that waits for the server is not waited for."""
        deadline = monotonic() + _ROUND_S
        while not self._inserting.acquire(timeout=_LOOK_S):
            if (lost := self._lost) is not None:
                raise _away(lost)
            if monotonic() > deadline:
                raise ResourceExhausted(f"rows were being stored for more than {_ROUND_S:g} s: try it again")
        try:
            yield
        finally:
            self._inserting.release()

    def _replace(self, run: ClickHouseRun, table: str, rows: Any) -> int:
        with self._excluding_rounds():
            return self._writer.replace(run, table, rows)

    def _tidy(self) -> None:
        while not self._is_closing.wait(_TIDY_S):
            for place, work in (("tables that change", self._remove_replaced), ("retention", self._forget)):
                self._problems.attempt(place, work)

    def _remove_replaced(self) -> None:
        """Remove rows that were replaced as a whole; those that were still asked when it was last looked stay."""
        with self._runs_lock:
            runs = [*self._runs.values()]
        found = {(run.name, table): batch for run in runs for table, batch in run.derived.items()}
        for (name, table), batch in self._retired.items():
            if found.get((name, table), batch) != batch:
                where = f"run = {{run:String}} AND sender = '{DERIVED}' AND batch < {{batch:Int64}}"
                with self._excluding_rounds():
                    self._lease.check()
                    self._server.remove(table, where, {"run": name, "batch": batch})
        self._retired = found

    def _forget(self) -> None:
        if not self._old.are_due:
            return
        first_kept = self._old.first_kept()  # takes a while, and rounds may be written meanwhile
        with self._excluding_rounds():
            self._lease.check()
            self._old.remove(first_kept)
            with self._runs_lock:
                runs = [*self._runs.values()]
            for run in runs:
                run.recount()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be made for the token of the store: {error}") from None


def _away(error: Exception) -> PeerFailure:
    return PeerFailure(f"nothing is stored until ClickHouse is back: {error}")
