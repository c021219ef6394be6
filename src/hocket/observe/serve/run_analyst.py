"""Analyses a run again and again while it goes on, in processes of their own with the lowest priority.

Neither the program nor the page waits for it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
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
_PAUSE_S, _MOST_PAUSE_S = 2.0, 60.0
"""After the process of an analysis was ended, as by the kernel when memory is short: twice as long each time."""
_MOST_REPORTED = 16

Places = Mapping[tuple[str, str], int]
"""Numbers of processes, by their host and name."""
_Derived = tuple[dict[str, bytes], float]
"""Tables as Arrow streams by name, and how many seconds they took."""


class _Analysis:
    """An analysis that is made again and again, in a process of its own.

    Args:
        make: the analysis.
        name: of it, for messages.
        needs_places: whether it waits until a process has a number.
        report: takes its name and what went wrong.
    """

    def __init__(
        self,
        make: Callable[[Path, Places], _Derived],
        name: str,
        needs_places: bool,
        report: Callable[[str, str], None],
    ) -> None:
        self._make, self._name, self._needs_places, self._report = make, name, needs_places, report
        self._pool: ProcessPoolExecutor | None = None
        self._asked: Future[_Derived] | None = None
        self._due_s = 0.0
        self._pause_s = _PAUSE_S
        self._reported: set[str] = set()
        self._hashes: dict[str, int] = {}
        """Of the tables as they were last."""

    def look(self, folder: Path, places: Places) -> dict[str, bytes]:
        """Return its tables that have changed; never waits, and raises nothing for what the run has."""
        if self._asked is None:
            if monotonic() >= self._due_s and (places or not self._needs_places):
                self._ask(folder, places)
            return {}
        if not self._asked.done():
            return {}
        asked, self._asked = self._asked, None
        self._due_s = monotonic() + _INTERVAL_S
        try:
            tables, cost_s = asked.result()
        except (RecorderError, OSError):
            return {}  # a process has just begun or ended: the next time
        except BrokenProcessPool:
            self._renew()
            return {}
        except Exception as error:  # what other processes have written may be anything
            self._wait(f"{type(error).__name__}: {error}")
            return {}
        self._pause_s = _PAUSE_S
        self._due_s = monotonic() + max(_INTERVAL_S, cost_s / _MOST_SHARE)
        hashes = {name: hash(content) for name, content in tables.items()}
        changed = {name: tables[name] for name, found in hashes.items() if self._hashes.get(name) != found}
        self._hashes = hashes
        return changed

    def close(self) -> None:
        """End its process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _ask(self, folder: Path, places: Places) -> None:
        try:
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin)
            self._asked = self._pool.submit(self._make, folder, dict(places))
        except BrokenProcessPool:
            self._renew()
        except (OSError, RuntimeError) as error:  # no more processes can be started, or this one ends
            self.close()
            self._wait(f"it cannot be started: {error}")

    def _renew(self) -> None:
        """Note that the process was ended from outside: a pool that has lost one takes nothing more."""
        self.close()
        self._wait("its process was ended, for example because memory was short")

    def _wait(self, problem: str) -> None:
        """Try it again later, and say once what went wrong."""
        self._due_s = monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        if problem not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(problem)
            self._report(self._name, f"{problem}; it is tried again")


class RunAnalyst:
    """Makes the tables that change as a whole, such as findings; a context manager, for one thread.

    Args:
        folder: of a run that goes on.
        report: takes the name of an analysis and what went wrong with it, each problem once.
    """

    def __init__(self, folder: Path, report: Callable[[str, str], None]) -> None:
        self._folder = folder
        # What the run does now is known soon, however long the analysis of all that it has done takes.
        self._analyses = [
            _Analysis(_derived, "the analysis of what the run has done", needs_places=True, report=report),
            _Analysis(_unfinished, "the analysis of what the run does now", needs_places=False, report=report),
        ]

    def __enter__(self) -> RunAnalyst:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._analyses:
            each.close()

    def look(self, places: Places) -> dict[str, Any]:
        """Return the tables that have changed, as Arrow has them; never waits.

        Args:
            places: which numbers processes have.
        """
        pa = arrow()
        tables = {name: content for each in self._analyses for name, content in each.look(self._folder, places).items()}
        return {name: pa.ipc.open_stream(content).read_all() for name, content in tables.items()}


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
