"""Saves the events of one recorder while its process writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import RecorderError
from hocket.observe.completeness import completeness_of, unavailable
from hocket.observe.processes import io_counters, status_of
from hocket.observe.saved import RECORDER_SUFFIX, events_path, saved_events
from hocket.observe.sparse_copy import copy_sparsely
from hocket.trace import EVENT_STATES, EndStatus, Owner, ReadWritten, RecorderSnapshot, Ring, read_recorder
from hocket.whole_file import write_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_COMPLETED = [EVENT_STATES.index(state) for state in ("completed", "failed")]
_REACH = 64
"""Events that are read again at every look, since one that is being written is left out."""
_PROGRAM_LENGTH = 100


class Drain:
    """Appends the completed events of each ring to a file; what is in flight is saved when it completes or at the end.

    Args:
        name: of the process's files in the saved run; see `name_of`.
        path: the recorder.
        target: folder for the files.
    """

    def __init__(self, name: str, path: Path, target: Path) -> None:
        self.name = name
        self.path = path
        self.target = target
        self.owner: Owner | None = None
        self.variables: Mapping[str, str] = {}
        self.end_status: EndStatus | None = None
        self.num_saved: dict[str, int] = {}
        """Events by ring."""
        self.lost: dict[str, int] = {}
        self.problems: list[str] = []
        self._begin: dict[str, int] = {}
        """Of each ring: every event before this place was saved or is lost."""
        self._saved: dict[str, set[int]] = {}
        """Places from there on that were saved."""
        self.io = unavailable("its recorder cannot be read")
        self.label = ""
        self.pid: int | None = None
        """Number of its process on this host while it runs."""
        self.is_over = False
        self.has_copy = False

    @property
    def is_replaced(self) -> bool:
        """Whether the process goes on as another program, after `os.exec`."""
        return self.owner is not None and self.path.name.endswith(f"-{self.owner.image}")

    def look(self, head: RecorderSnapshot) -> float:
        """Save what is new.

        Args:
            head: the recorder as it is now, without its events.

        Returns:
            The largest share of a ring that was new.
        """
        if self.is_over:
            return 0.0
        self.owner = head.owner
        self.variables = head.variables
        try:
            status = status_of(head.owner)
            self.pid = status.pid if status else None
            if status is None:
                self.finish()
                return 0.0
            self._look_at_io(head, io_counters(status))
            new = {name: ring.next_place - self._begin.get(name, 0) for name, ring in head.rings.items()}
            if not any(new.values()):
                return 0.0
            snapshot = self._read(max(new.values()) + _REACH)
        except RecorderError:
            return 0.0  # it is being made; what stays unreadable is told at the end
        for ring in snapshot.rings.values():
            self._save_ring(ring, takes_open=False)
        return max(new[name] / max(ring.capacity, 1) for name, ring in head.rings.items())

    def finish(self) -> None:
        """Save all that is left, in flight or not, and a copy of the recorder; then remove the recorder."""
        if self.is_over:
            return
        self.is_over = True
        try:
            snapshot = self._read()
        except RecorderError as error:
            self.problems.append(str(error))
            return
        self.owner = snapshot.owner
        self.problems += snapshot.problems
        self._look_at_io(snapshot, io_counters(status_of(snapshot.owner)))
        self.end_status = snapshot.end_status
        for ring in snapshot.rings.values():
            self._save_ring(ring, takes_open=True)
        # Who follows the run sees the copy whole, or not yet.
        write_whole(self.target / (self.name + RECORDER_SUFFIX), lambda part: copy_sparsely(self.path, part))
        self.has_copy = True
        self.path.unlink(missing_ok=True)

    def _look_at_io(self, snapshot: RecorderSnapshot, counters: ReadWritten | None) -> None:
        """Keep what the kernel says of a process now: if it is killed, this is all that there will be."""
        program = " ".join(snapshot.owner.program.split())
        self.label = f"process {snapshot.owner.pid} ({program[:_PROGRAM_LENGTH]})"
        last = self.io if self.io.read is not None else None
        self.io = completeness_of(snapshot, counters, last)

    def _read(self, latest: int | None = None) -> RecorderSnapshot:
        snapshot = read_recorder(self.path, latest)
        if self.owner and snapshot.owner.image != self.owner.image:  # the process has replaced itself just now
            self.path = self.path.with_name(f"{self.path.name}-{self.owner.image}")
            snapshot = read_recorder(self.path, latest)
        return snapshot

    def _save_ring(self, ring: Ring, takes_open: bool) -> None:
        import numpy as np

        begin, saved = self._begin.get(ring.name, 0), self._saved.setdefault(ring.name, set())
        oldest = max(ring.next_place - ring.capacity, 0)
        if oldest > begin:  # overwritten meanwhile
            self.lost[ring.name] = self.lost.get(ring.name, 0) + sum(
                place not in saved for place in range(begin, oldest)
            )
            saved.difference_update(range(begin, oldest))
            begin = oldest
        is_wanted = ring.places >= begin
        if saved:
            is_wanted &= ~np.isin(ring.places, list(saved))
        if not takes_open:
            is_wanted &= np.isin(ring.events["state"], _COMPLETED)
        rows = saved_events(ring)[is_wanted]
        if len(rows):
            self._append(ring.name, rows)
            saved.update(rows["place"].tolist())
        while begin in saved:
            saved.remove(begin)
            begin += 1
        self._begin[ring.name] = begin

    def _append(self, ring: str, rows: NDArray[np.void]) -> None:
        with events_path(self.target, self.name, ring).open("ab") as file:
            file.write(rows.tobytes())
        self.num_saved[ring] = self.num_saved.get(ring, 0) + len(rows)
