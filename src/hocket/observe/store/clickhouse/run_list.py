"""The runs of a store in ClickHouse, which their only owner keeps in memory, too."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from threading import Lock
from time import time
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.segments import RUN_NAME

if TYPE_CHECKING:
    from hocket.observe.store.clickhouse.server import ClickHouseServer

_MOST_RUNS = 100_000
_MOST_DESCRIPTION = 1 << 20


@dataclass(frozen=True)
class ListedRun:
    """A run.

    Args:
        description: JSON that says which run it is.
        created_us: when it was made, in microseconds since 1970.
        is_loaded: whether the store has all of it from a loader.
    """

    description: Any
    created_us: int
    is_loaded: bool = False


class ListedRuns:
    """All runs; for all threads, but changed by one at a time.

    Args:
        server, database: where they are.
        ident: name of the owner.

    Raises:
        PeerFailure: the server cannot be reached.
        RecorderError: a description is damaged; names its run.
    """

    def __init__(self, server: ClickHouseServer, database: str, ident: str) -> None:
        self._server, self._database, self._ident = server, database, ident
        self._lock = Lock()
        self._number = 0
        self.reload()

    def reload(self) -> None:
        """Read all of them again."""
        rows = self._server.ask(
            f"""SELECT name, any(description), toUnixTimestamp64Micro(min(created)), max(is_loaded)
            FROM {self._database}.runs GROUP BY name"""
        ).rows
        found = {
            str(name): ListedRun(_parsed(name, text), int(created_us), bool(is_loaded))
            for name, text, created_us, is_loaded in rows
        }
        with self._lock:
            self._runs = found

    def names(self) -> list[str]:
        """Return all names, the one that was made last first."""
        with self._lock:
            return sorted(self._runs, key=lambda name: (self._runs[name].created_us, name), reverse=True)

    def find(self, name: str) -> ListedRun | None:
        """Return the run with this name, or None."""
        with self._lock:
            return self._runs.get(name)

    def add(self, name: str, description: dict[str, Any]) -> None:
        """Add one.

        Raises:
            InvalidArgument: there are too many.
            PeerFailure: the server cannot be reached.
        """
        with self._lock:
            if len(self._runs) >= _MOST_RUNS:
                raise InvalidArgument(f"the store has {_MOST_RUNS} runs, the most it can have: remove some")
        self._insert(name, ListedRun(json.loads(json.dumps(description)), int(time() * 1e6)))

    def mark_loaded(self, name: str) -> None:
        """Note that the store has all of one."""
        known = self.find(name)
        if known is not None:
            self._insert(name, replace(known, is_loaded=True))

    def remove(self, name: str) -> None:
        """Remove one."""
        self._server.remove("runs", "name = {name:String}", {"name": name})
        with self._lock:
            self._runs.pop(name, None)

    def _insert(self, name: str, run: ListedRun) -> None:
        pa = arrow()
        self._number += 1
        values = [
            [name],
            [json.dumps(run.description)],
            pa.array([run.created_us], pa.timestamp("us")),
            [run.is_loaded],
        ]
        rows = pa.table(values, names=["name", "description", "created", "is_loaded"])
        self._server.insert("runs", rows, f"{self._ident}/runs/{self._number}")
        with self._lock:
            self._runs[name] = run


def _parsed(name: str, text: str) -> Any:
    try:
        if not RUN_NAME.fullmatch(name) or len(text) > _MOST_DESCRIPTION:
            raise ValueError("it is too long, or has no name of a run")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecorderError(f"the description of run {name!r:.120} is damaged: {error}") from None
