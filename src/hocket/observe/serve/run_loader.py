"""Brings the folder of a run, or of its tables, into a store, and follows a run that goes on: its rows come while it
goes on, and when it is over all its tables come anew, as a run that has them from one reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from hocket.errors import HocketError, PeerFailure, RecorderError
from hocket.observe.saved import load_description, open_run
from hocket.observe.serve.live import LiveRuns
from hocket.observe.serve.run_analyst import RunAnalyst
from hocket.observe.store.arrow_batches import arrow_table
from hocket.observe.store.followed_run import RunFollower, goes_on
from hocket.observe.store.interface import IngestAnswer, RunInStore, RunStore
from hocket.observe.store.run_tables import run_tables
from hocket.observe.store.segments import MOST_RUN_NAME
from hocket.observe.store.table_folders import describe_tables, is_folder_of_tables, read_tables

if TYPE_CHECKING:
    import pyarrow as pa

    from hocket.observe.saved import RunDescription
    from hocket.observe.store.run_tables import Columns

_LOOK_S = 0.04
_SENDER = "loader"
_BATCH_ROWS = 65_536
_STORED_S = 120.0
_LOST_S, _MOST_LOST_S = 2.0, 60.0
_BEGINNING_S = 30.0
"""A run that has just begun may say nothing so long."""
LIVE_ENDING = "-live"
"""Of the name of a run in the store while it goes on."""


class RunLoader:
    """Loads a run in a thread.

    Args:
        owner: of the store.
        live: the runs that go on.
        folder: of the run, or of its tables.
        name: of it in the store.
    """

    def __init__(self, owner: RunStore, live: LiveRuns, folder: Path, name: str) -> None:
        self._owner, self._live, self._folder, self._name = owner, live, folder, name
        self._stops = Event()
        self._thread = Thread(target=self._run, name=f"load {name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, with or without the rest."""
        self._stops.set()
        self._thread.join(_STORED_S)

    def _run(self) -> None:
        pause_s = _LOST_S
        while not self._stops.is_set():
            try:
                if not self._owner.is_loaded(self._name):
                    self._follow()
                self._report("", "")
                return
            except (PeerFailure, OSError) as error:  # the database is away, or a disk is full: it may not stay so
                self._report("", str(error))
            except Exception as error:  # of a file that another process has written: the server goes on
                named = str(error) if isinstance(error, HocketError) else f"{type(error).__name__}: {error}"
                self._report("", named)
                return
            self._stops.wait(pause_s)  # then the run is followed from its beginning
            pause_s = min(2 * pause_s, _MOST_LOST_S)

    def _report(self, place: str, problem: str) -> None:
        where = f"run {self._name}{place and ', '}{place}"
        self._owner.report(where, f"{self._folder}: {problem}" if problem else "")

    def _follow(self) -> None:
        """Store what a run saves, until it is over; then all of it."""
        if is_folder_of_tables(self._folder):
            self._load()
            return
        description = self._description()
        if description is None:
            return
        if description.exit_code is not None and not goes_on(self._folder):
            self._load()
            return
        live_name = self._name + LIVE_ENDING
        self._owner.remove_run(live_name)
        run = _added(self._owner, live_name, _facts(description))
        live = self._live.begin(run)
        live.is_local = True
        try:
            follower, next_rows = RunFollower(self._folder), dict[str, int]()
            with RunAnalyst(self._folder, self._report) as analyst:
                while not self._stops.wait(_LOOK_S):
                    found = follower.look()
                    live.hear(found.now_s)
                    _submit(self._owner, run, _as_arrow(found.tables), next_rows)
                    if tables := analyst.look(follower.places):
                        run.replace_tables(tables)
                        live.change()
                    if found.is_over:
                        break
            if not self._stops.is_set():
                self._load()
                live.end(self._name)
        finally:
            if not live.is_over:
                live.end("")

    def _description(self) -> RunDescription | None:
        began_s = monotonic()
        while not self._stops.wait(_LOOK_S):
            try:
                return load_description(self._folder)[0]
            except RecorderError:
                if monotonic() - began_s > _BEGINNING_S:
                    raise
        return None

    def _load(self) -> None:
        load_run(self._owner, self._folder, self._name)
        self._owner.mark_loaded(self._name)


def load_run(owner: RunStore, folder: Path, name: str) -> RunInStore:
    """Store a run that is over, in place of what the store has under its name.

    Args:
        owner: of the store.
        folder: of the run, or of its tables.
        name: of the run in the store.
    """
    if is_folder_of_tables(folder):
        facts, tables = describe_tables(folder), read_tables(folder)
    else:
        opened = open_run(folder)
        facts, tables = _facts(opened.description), _as_arrow(run_tables(opened))
    owner.remove_run(name)
    run = _added(owner, name, facts)
    _submit(owner, run, tables, {})
    return run


def _facts(description: RunDescription) -> dict[str, Any]:
    return {"began_unix_s": description.began_s, "command": list(description.command)}


def _added(owner: RunStore, name: str, facts: dict[str, Any]) -> RunInStore:
    owner.add_run(name, facts)
    run = owner.find_run(name)
    assert run is not None
    return run


def _submit(
    owner: RunStore, run: RunInStore, tables: Iterable[tuple[str, pa.Table]], next_rows: dict[str, int]
) -> None:
    waiting: list[Future[IngestAnswer]] = []
    for table, rows in tables:
        for first in range(0, rows.num_rows, _BATCH_ROWS):
            part, number = rows.slice(first, _BATCH_ROWS), next_rows.get(table, 0)
            waiting.append(owner.submit(run, table, _SENDER, number, part, part.nbytes))
            next_rows[table] = number + part.num_rows
            while len(waiting) > 8:
                waiting.pop(0).result(_STORED_S)
    for each in waiting:
        each.result(_STORED_S)


def _as_arrow(tables: Mapping[str, Columns]) -> Iterator[tuple[str, pa.Table]]:
    return ((table, arrow_table(table, columns)) for table, columns in tables.items())


def name_in_store(folder: Path) -> str:
    """Return the name that a run has in a store: that of its folder, with "-" for what a name cannot have."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", folder.resolve().name).lstrip("._-")
    return name[: MOST_RUN_NAME - len(LIVE_ENDING)] or "run"
