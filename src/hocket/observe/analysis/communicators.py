"""The communicators of a recorded run, and the names of libraries and algorithms.

Numbers of communicators differ between processes. Here one communicator has one number in the whole run: members make
their communicators in the same order, so the n-th one with a label and members is the same on all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hocket.observe.jobs import job_numbers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.saved import SavedProcess

_START_UP = "start-up"
"""Label of the communicators by which hocket's ranks exchange what they need to start."""


@dataclass(frozen=True)
class RunCommunicator:
    """A communicator of a run.

    Args:
        label: its name, such as "world"; the same on all members.
        job: number of the job that it belongs to, from 0.
        members: ranks in the job by rank in the communicator; empty: unknown.
        processes: of each rank in the communicator that was recorded, the process, as a place in
            `ObservedRun.processes`.
        policies: JSON of each policy that chose its libraries, in the order in which they came; none: unknown.

    Examples:
        >>> from hocket import observe
        >>> observe.RunCommunicator("world", 0, (0, 1), {0: 0, 1: 1}).size
        2
    """

    label: str
    job: int
    members: tuple[int, ...]
    processes: dict[int, int]
    policies: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of members, as far as it is known."""
        return max(len(self.members), 1 + max(self.processes, default=-1))


class RunNames:
    """What numbers of one process mean in the whole run.

    Args:
        processes: of the run.

    Attributes:
        communicators: of the run.
        texts: names of libraries and algorithms; the first one is "", the library's own algorithm.
    """

    def __init__(self, processes: Sequence[SavedProcess]) -> None:
        self._processes = processes
        self._places = {"": 0}
        self._comms: list[dict[int, int]] = [{} for _ in processes]
        found: dict[tuple[int, str, str, int], tuple[int, RunCommunicator]] = {}
        policies: dict[int, tuple[str, ...]] = {}
        for place, (process, job) in enumerate(zip(processes, job_numbers(processes), strict=True)):
            num_same: Counter[tuple[str, str]] = Counter()
            for ident, definition in process.snapshot.communicators.items():
                same = definition.text, process.snapshot.names.get(("members", ident, 0), "")
                key = job, *same, num_same[same]
                num_same[same] += 1
                members = process.snapshot.members.get(ident, ())
                new = len(found), RunCommunicator(definition.text, job, members, {})
                self._comms[place][ident], communicator = found.setdefault(key, new)
                communicator.processes.setdefault(definition.extra, place)
                own = {each.number: each.text for each in process.snapshot.definitions
                       if each.kind == "policy" and each.id == ident}  # fmt: skip
                if own:
                    policies[self._comms[place][ident]] = tuple(own[number] for number in sorted(own))
        self.communicators = tuple(replace(each, policies=policies.get(number, ())) for number, each in found.values())

    @property
    def texts(self) -> tuple[str, ...]:
        """Names so far, by number."""
        return tuple(self._places)

    def comm(self, place: int, ident: int) -> int:
        """Return the number in the run of a process's communicator; -1: it has no definition."""
        return self._comms[place].get(ident, -1)

    def rank(self, place: int, ident: int) -> int:
        """Return the process's rank in its communicator; -1: unknown."""
        definition = self._processes[place].snapshot.communicators.get(ident)
        return definition.extra if definition else -1

    def library(self, place: int, ident: int, number: int) -> int:
        """Return the number in `texts` of a library."""
        name = self._processes[place].snapshot.names.get(("backend", ident, number), f"library {number}")
        return self._places.setdefault(name, len(self._places))

    def algorithm(self, place: int, ident: int, number: int) -> int:
        """Return the number in `texts` of an algorithm."""
        if number == 0:
            return 0
        name = self._processes[place].snapshot.names.get(("algorithm", ident, number), f"algorithm {number}")
        return self._places.setdefault(name, len(self._places))

    def fill(self, rows: NDArray[np.void], source: NDArray[np.void], place: int) -> None:
        """Set "comm", "rank", "library" and "algorithm" of rows of one process.

        Args:
            rows: to be filled.
            source: its events or totals, one for each row.
            place: of the process in the run.
        """
        import numpy as np

        keys = np.stack([source[field].astype(np.int64) for field in ("comm", "backend", "algorithm")], axis=1)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        found = np.array(
            [
                (self.comm(place, comm), self.rank(place, comm), self.library(place, comm, library),
                 self.algorithm(place, comm, algorithm))
                for comm, library, algorithm in unique.tolist()
            ],
            np.int64,
        ).reshape(-1, 4)[inverse.reshape(-1)]  # fmt: skip
        for column, field in enumerate(("comm", "rank", "library", "algorithm")):
            rows[field] = found[:, column]


def numbers_of_program(communicators: Sequence[RunCommunicator]) -> list[int]:
    """Return the numbers of the communicators that the program made; hocket has others while it starts."""
    return [number for number, each in enumerate(communicators) if each.label != _START_UP]
