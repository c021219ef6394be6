"""The owner of a store: the one process that writes it.

Rows are answered for when they are sealed: a store whose owner is killed
has all of them. Rows that arrive together are sealed together, by one thread.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree
from threading import Condition, Event, Lock, Thread
from time import time
from typing import Any

from hocket.errors import HocketError, InvalidArgument, InvalidState, RecorderError, ResourceExhausted
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.interface import IngestAnswer, RunInStore, answer_waiting
from hocket.observe.store.queued_rows import QueuedRows, RowQueue
from hocket.observe.store.segments import RUN_FILE, RUN_NAME, STORE_FILE, STORE_HEAD, check_run_name, check_store
from hocket.observe.store.senders import SenderRows
from hocket.observe.store.store_problems import StoreProblems
from hocket.observe.store.stored_run import StoredRun
from hocket.versioned_json import Head
from hocket.whole_file import write_text

MOST_QUEUED_NBYTES = 256 << 20
_LOADED = Head("hocket loaded runs, version ", 1, RecorderError, most_nbytes=1 << 20)
_LOCK_FILE, _LOADED_FILE, _RUNS = "owner.lock", "loaded.json", "runs"
_MOST_RUNS = 100_000
_GATHER_S = 0.05
"""Few rows wait so long for others: each segment costs some milliseconds."""
_TIDY_S = 5.0
_CLOSE_S = 60.0
_FOR_EVER = float("inf")


@dataclass(frozen=True)
class Retention:
    """How long a store keeps what.

    Args:
        events_s: seconds that events are kept; None: for ever.
        events_nbytes: most bytes of all events; the oldest ones go first. None: no limit.
        rollups_s: seconds that roll-ups are kept; None: for ever.

    Raises:
        InvalidArgument: a limit is not positive.

    Examples:
        >>> from hocket import observe
        >>> observe.Retention(events_s=30 * 86_400, events_nbytes=10**11).rollups_s is None
        True
    """

    events_s: float | None = None
    events_nbytes: int | None = None
    rollups_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("events_s", "events_nbytes", "rollups_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidArgument(f"{name} must be positive, not {value}")


class StoreOwner:
    """Owns a store until it is closed; a context manager.

    Args:
        folder: of the store; made if it does not exist.
        retention: what is removed when.
        most_queued_nbytes: rows that wait for being sealed have at most so many bytes.

    Raises:
        InvalidArgument: the folder is something else.
        InvalidState: another process owns the store; names it.
        MissingPackage: a package that the store needs is not installed.
        RecorderError: the store is of another version; names both.
    """

    def __init__(
        self, folder: str | Path, *, retention: Retention | None = None, most_queued_nbytes: int = MOST_QUEUED_NBYTES
    ) -> None:
        arrow().set_cpu_count(1)  # what can be done at once is done by threads of ours
        self.folder = Path(folder)
        self.place = str(self.folder)
        self._retention = retention or Retention()
        _make_store(self.folder)
        self._lock_file = _lock(self.folder / _LOCK_FILE)
        self._runs: dict[str, StoredRun] = {}
        self._runs_lock = Lock()
        self._loading: dict[str, Lock] = {}
        self._problems = StoreProblems()
        self._changed = Condition()
        self._queue: RowQueue[StoredRun] = RowQueue(self._changed, most_queued_nbytes)
        self._is_closing = Event()
        self._pool = ThreadPoolExecutor(2, "segment")
        self._threads = [Thread(target=each, name=name, daemon=True)
                         for each, name in ((self._write, "writer"), (self._tidy, "tidy"))]  # fmt: skip
        for each in self._threads:
            each.start()

    def __enter__(self) -> StoreOwner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Seal what waits, and give the store up."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        with self._changed:
            self._changed.notify_all()
        for each in self._threads:
            each.join(_CLOSE_S)
        self._pool.shutdown(wait=not any(each.is_alive() for each in self._threads))
        for run in self._runs.values():
            run.close()
        os.close(self._lock_file)

    def run_names(self) -> list[str]:
        """Return the names of all runs, the one that was made last first."""
        with suppress(FileNotFoundError):
            files = [each / RUN_FILE for each in (self.folder / _RUNS).iterdir() if RUN_NAME.fullmatch(each.name)]
            found = [(each.stat().st_mtime, each.parent.name) for each in files if each.exists()]
            return [name for _, name in sorted(found, reverse=True)]
        return []

    def add_run(self, name: str, description: dict[str, Any]) -> bool:
        """Make a run, and return whether it is new; see `RunStore.add_run`.

        Args:
            name: letters, digits, ".", "_" and "-".
            description: JSON that says which run it is; {}: any.
        """
        check_run_name(name)
        with self._runs_lock:
            folder = self.folder / _RUNS / name
            if not (folder / RUN_FILE).exists():
                if len(self.run_names()) >= _MOST_RUNS:
                    raise InvalidArgument(f"the store has {_MOST_RUNS} runs, the most it can have: remove some")
                StoredRun.create(folder, description)
                return True
        known = self.find_run(name)
        if description and known is not None and known.description != description:
            raise InvalidArgument(f"the store has another run {name}: give this one another name")
        return False

    def find_run(self, name: str) -> StoredRun | None:
        """Return a run; None if the store has no run of this name.

        Raises:
            InvalidArgument: the name is not valid.
            RecorderError: a file of it is damaged; names it.
        """
        check_run_name(name)
        with self._runs_lock:
            if name in self._runs:
                return self._runs[name]
            if not (self.folder / _RUNS / name / RUN_FILE).exists():
                return None
            loading = self._loading.setdefault(name, Lock())
        with loading:  # a long run takes a while; others go on meanwhile
            with self._runs_lock:
                if name in self._runs:
                    return self._runs[name]
            run = StoredRun(self.folder / _RUNS / name)
            with self._runs_lock:
                self._loading.pop(name, None)
                return self._runs.setdefault(name, run)

    def remove_run(self, name: str) -> None:
        """Remove a run and all its files; whoever asks it just now may fail.

        Raises:
            InvalidArgument: the name is not valid.
            OSError: a file cannot be removed.
        """
        check_run_name(name)
        with self._runs_lock:
            run = self._runs.pop(name, None)
            folder = self.folder / _RUNS / name
            if folder.exists():
                # First it is no run any more, then its files go.
                gone = folder.with_name(f".{name}.{os.urandom(8).hex()}")
                folder.rename(gone)
                rmtree(gone)
        if run is not None:
            run.close()

    def is_loaded(self, name: str) -> bool:
        """Return whether the store has all of a run that a loader has brought.

        Raises:
            RecorderError: the list of these runs is damaged; names its file.
        """
        return name in self._loaded()

    def mark_loaded(self, name: str) -> None:
        """Note that the store has all of a run that a loader has brought."""
        runs = sorted({*self._loaded(), name})
        write_text(self.folder / _LOADED_FILE, json.dumps({_LOADED.key: _LOADED.text, "runs": runs}))

    def _loaded(self) -> list[str]:
        path = self.folder / _LOADED_FILE
        return [str(each) for each in _LOADED.load(path)[1].get("runs", [])] if path.exists() else []

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
        """Have rows sealed, unless they already are; see `RunStore.submit`."""
        assert isinstance(run, StoredRun)
        piece = SenderRows(sender, first_row, rows)
        with self._changed:
            if self._is_closing.is_set():
                raise ResourceExhausted("the store is being closed")
            return self._queue.submit(run, table, piece, nbytes)

    def _write(self) -> None:
        while True:
            with self._changed:
                while not self._queue.rows and not self._is_closing.is_set():
                    self._changed.wait()
                if not self._queue.rows:
                    return
                self._queue.gather(_GATHER_S, self._is_closing)
                taken = self._queue.take()
            groups: dict[tuple[int, str], list[QueuedRows[StoredRun]]] = defaultdict(list)
            for each in taken:
                groups[id(each.run), each.table].append(each)
            for group in groups.values():
                self._seal(group)
            with self._changed:
                self._queue.release(taken)
            taken.clear()

    def _seal(self, group: list[QueuedRows[StoredRun]]) -> None:
        run, table = group[0].run, group[0].table
        try:
            run.seal(table, [each.piece for each in group], self._pool)
        except Exception as error:  # a full disk, rows that cannot be written: the owner goes on
            if len({each.piece.sender for each in group}) > 1:  # what one has sent is not to fail another
                by_sender: dict[str, list[QueuedRows[StoredRun]]] = defaultdict(list)
                for each in group:
                    by_sender[each.piece.sender].append(each)
                for own in by_sender.values():
                    self._seal(own)
                return
            self._fail(group, error)
            return
        for each in group:
            answer_waiting(each.done, IngestAnswer(each.piece.after, each.piece.rows.num_rows))

    def _fail(self, group: list[QueuedRows[StoredRun]], error: Exception) -> None:
        """Tell a sender that its rows are not stored; and those that follow in the queue, which count on them."""
        run, table, sender = group[0].run, group[0].table, group[0].piece.sender
        with self._changed:
            run.senders.give_up(table, sender)
            late = self._queue.drop(group[0].has_sender_of)
        if not isinstance(error, (OSError, HocketError)):
            error = RecorderError(f"the rows cannot be stored: {type(error).__name__}: {error}")
        for each in (*group, *late):
            answer_waiting(each.done, error)

    def _tidy(self) -> None:
        while not self._is_closing.wait(_TIDY_S):
            with self._runs_lock:
                runs = [*self._runs.values()]
            for run in runs:
                self._problems.attempt(f"run {run.name}", run.tidy)
            self._problems.attempt("retention", self._forget)

    def _forget(self) -> None:
        limits, attempt = self._retention, self._problems.attempt
        if limits == Retention():
            return
        now = time()
        events_before = 0.0 if limits.events_s is None else now - limits.events_s
        rollups_before = 0.0 if limits.rollups_s is None else now - limits.rollups_s
        runs: list[StoredRun] = []
        for name in self.run_names():
            find = partial(self.find_run, name)
            attempt(f"run {name}", lambda find=find: runs.extend(filter(None, [find()])))  # type: ignore[misc]
        if limits.events_nbytes is not None:
            segments = sorted((each for run in runs for each in run.segments()), key=lambda each: -each.written_s)
            total = 0
            for each in segments:
                total += each.nbytes
                if total > limits.events_nbytes:
                    events_before = max(events_before, each.written_s + 1e-6)
                    break
        for run in runs:
            attempt(f"run {run.name}", partial(run.forget, events_before, rollups_before))


def _make_store(folder: Path) -> None:
    path = folder / STORE_FILE
    try:
        if not path.exists():
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise InvalidArgument(f"{folder} is no store, and not an empty folder")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_text(path, f'{{"{STORE_HEAD.key}": "{STORE_HEAD.text}"}}\n')
        check_store(folder)
        (folder / _RUNS).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be made a store: {error}") from None


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(descriptor, 20).decode(errors="replace").strip()
        os.close(descriptor)
        raise InvalidState(f"{path.parent} is owned by process {owner or 'that is not known'}: ask that one") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
