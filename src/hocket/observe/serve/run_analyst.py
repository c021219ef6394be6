"""Analyses a run again and again while it goes on, in processes of their own with the lowest priority.

Neither the program nor the page waits for it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from hocket.errors import RecorderError
from hocket.observe.saved import open_run
from hocket.observe.store.arrow_batches import arrow, arrow_table

if TYPE_CHECKING:
    from hocket.observe.store.run_tables import Columns

_INTERVAL_S = 1.0
_MOST_SHARE = 0.2
"""Of the time of a CPU, of each analysis."""
_NICE = 19

Places = Mapping[tuple[str, str], int]
"""Numbers of processes, by their host and name."""
_Derived = tuple[dict[str, bytes], float]
"""Tables as Arrow streams by name, and how many seconds they took."""


@dataclass
class _Analysis:
    """An analysis that is made again and again."""

    make: Callable[[Path, Places], _Derived]
    needs_places: bool
    asked: Future[_Derived] | None = None
    due_s: float = 0.0
    hashes: dict[str, int] = field(default_factory=dict)
    """Of the tables as they were last."""


class RunAnalyst:
    """Makes the tables that change as a whole, such as findings; a context manager, for one thread.

    Args:
        folder: of a run that goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # What the run does now is known soon, however long the analysis of all that it has done takes.
        self._analyses = [_Analysis(_derived, needs_places=True), _Analysis(_unfinished, needs_places=False)]
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(len(self._analyses), mp_context=context, initializer=_begin)

    def __enter__(self) -> RunAnalyst:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def look(self, places: Places) -> dict[str, Any]:
        """Return the tables that have changed, as Arrow has them; never waits.

        Args:
            places: which numbers processes have.
        """
        pa = arrow()
        tables = {name: content for each in self._analyses for name, content in self._look_at(each, places).items()}
        return {name: pa.ipc.open_stream(content).read_all() for name, content in tables.items()}

    def _look_at(self, analysis: _Analysis, places: Places) -> dict[str, bytes]:
        if analysis.asked is None:
            if monotonic() >= analysis.due_s and (places or not analysis.needs_places):
                with suppress(BrokenProcessPool, RuntimeError):  # it was killed: the rest goes on
                    analysis.asked = self._pool.submit(analysis.make, self._folder, dict(places))
            return {}
        if not analysis.asked.done():
            return {}
        asked, analysis.asked = analysis.asked, None
        analysis.due_s = monotonic() + _INTERVAL_S
        try:
            tables, cost_s = asked.result()
        except (RecorderError, OSError, BrokenProcessPool):
            return {}  # a process has just begun or ended: the next time
        analysis.due_s = monotonic() + max(_INTERVAL_S, cost_s / _MOST_SHARE)
        hashes = {name: hash(content) for name, content in tables.items()}
        changed = {name: tables[name] for name, found in hashes.items() if analysis.hashes.get(name) != found}
        analysis.hashes = hashes
        return changed


def _begin() -> None:
    """Take the lowest priority, and end with the process that has started this one, however it ends."""
    os.nice(_NICE)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)


def _derived(folder: Path, places: Places) -> _Derived:
    """The tables of all that the run has done."""
    from hocket.observe.analysis.operations import operations_of
    from hocket.observe.store.run_tables import derived_tables

    began_s = monotonic()
    run = open_run(folder)
    # Processes that no events are known of have no number yet: they come last.
    names = {(each.host, each.name): each for each in run.processes}
    processes = sorted(names, key=lambda key: (places.get(key, len(places)), key))
    run = replace(run, processes=tuple(names[key] for key in processes))
    return _as_streams(derived_tables(run, operations_of(run))), monotonic() - began_s


def _unfinished(folder: Path, _: Places) -> _Derived:
    """The table of what the run does now."""
    from hocket.observe.analysis.operations import operations_of
    from hocket.observe.store.followed_run import read_latest
    from hocket.observe.store.run_tables import unfinished_table

    began_s = monotonic()
    run, now_s = read_latest(folder)
    return _as_streams(unfinished_table(run, operations_of(run), now_s)), monotonic() - began_s


def _as_streams(tables: Mapping[str, Columns]) -> dict[str, bytes]:
    pa = arrow()
    found = {}
    for table, columns in tables.items():
        rows, sink = arrow_table(table, columns), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        found[table] = sink.getvalue().to_pybytes()
    return found
