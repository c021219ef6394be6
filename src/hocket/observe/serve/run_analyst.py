"""Analyses a run again and again while it goes on, in a process of its own with the lowest priority.

Neither the program nor the page waits for it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

from hocket.errors import RecorderError
from hocket.observe.saved import open_run
from hocket.observe.store.arrow_batches import arrow, arrow_table

_INTERVAL_S = 1.0
_MOST_SHARE = 0.2
"""Of the time of a CPU."""
_NICE = 19

Places = Mapping[tuple[str, str], int]
"""Numbers of processes, by their host and name."""


class RunAnalyst:
    """Makes the tables that change as a whole, such as findings; a context manager, for one thread.

    Args:
        folder: of a run that goes on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
        self._asked: Future[tuple[dict[str, bytes], float]] | None = None
        self._due_s = 0.0

    def __enter__(self) -> RunAnalyst:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def look(self, places: Places) -> dict[str, Any] | None:
        """Return new tables, as Arrow has them, if there are any; never waits.

        Args:
            places: which numbers processes have.
        """
        if self._asked is None:
            if monotonic() >= self._due_s and places:
                with suppress(BrokenProcessPool, RuntimeError):  # it was killed: the rest goes on
                    self._asked = self._pool.submit(_derived, self._folder, dict(places))
            return None
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        self._due_s = monotonic() + _INTERVAL_S
        try:
            tables, cost_s = asked.result()
        except (RecorderError, OSError, BrokenProcessPool):
            return None  # a process has just begun or ended: the next time
        self._due_s = monotonic() + max(_INTERVAL_S, cost_s / _MOST_SHARE)
        pa = arrow()
        return {table: pa.ipc.open_stream(content).read_all() for table, content in tables.items()}


def _begin() -> None:
    """Take the lowest priority, and end with the process that has started this one, however it ends."""
    os.nice(_NICE)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(0)


def _derived(folder: Path, places: Places) -> tuple[dict[str, bytes], float]:
    """Return the tables as Arrow streams, and how long it took."""
    from hocket.observe.analysis.operations import operations_of
    from hocket.observe.store.run_tables import derived_tables

    began_s = monotonic()
    run = open_run(folder)
    # Processes that no events are known of have no number yet: they come last.
    names = {(each.host, each.name): each for each in run.processes}
    processes = sorted(names, key=lambda key: (places.get(key, len(places)), key))
    run = replace(run, processes=tuple(names[key] for key in processes))
    pa = arrow()
    found = {}
    for table, columns in derived_tables(run, operations_of(run)).items():
        rows, sink = arrow_table(table, columns), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        found[table] = sink.getvalue().to_pybytes()
    return found, monotonic() - began_s
