"""What has been found out, a line of JSON each, so that a run goes on where the last one ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .catalogue import Mutation
from .rooms import fingerprint

GREEN = ""  # the name of no mutation: tests that pass without any
MISSED = "missed"


@dataclass(frozen=True)
class Result:
    """One line.

    Args:
        id: of a mutation; `GREEN` where there was none.
        room: whose tests were run.
        kind: as of `Run`; `MISSED` where they all passed in spite of the bug.
        test: that caught it.
        seconds: of the tests that were run until then.
        stands_on: `fingerprint` of what it was found with.
    """

    id: str
    room: str
    kind: str
    test: str
    seconds: float
    stands_on: str


class Results:
    """The lines of a file.

    Args:
        path: of it; made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[Result] = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    self._found.append(Result(**json.loads(line)))
                except (ValueError, TypeError):
                    continue  # half a line

    def add(self, result: Result) -> None:
        """Keep a result."""
        self._found.append(result)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        has_torn_line = self._path.exists() and not self._path.read_text().endswith("\n")  # of a run that was killed
        with self._path.open("a") as file:
            file.write("\n" * has_torn_line + json.dumps(asdict(result)) + "\n")

    def green(self, room: str, stands_on: str) -> Result | None:
        """Return that the tests of a room pass without a mutation, if that is known of what is there now."""
        return next((each for each in self._of(GREEN) if (each.room, each.stands_on) == (room, stands_on)), None)

    def caught(self, root: Path, mutation: Mutation) -> Result | None:
        """Return what caught a mutation, if sources and the tests that did are what they were."""
        for each in self._of(mutation.id):
            if each.kind != MISSED and each.stands_on == fingerprint(root, each.room, mutation):
                return each
        return None

    def is_missed(self, mutation: Mutation, room: str, stands_on: str) -> bool:
        """Return whether it is known that the tests of a room, as they are, do not catch a mutation."""
        return any(
            (each.room, each.kind, each.stands_on) == (room, MISSED, stands_on) for each in self._of(mutation.id)
        )

    def seconds(self) -> dict[str, float]:
        """Return what rooms take, as it was seen last."""
        return {each.room: each.seconds for each in self._found if each.id == GREEN}

    def mean_seconds(self, others: bool) -> float:
        """Return what a mutation takes, as far as is known: in its room, or in all others."""
        if others:
            return sum(self.seconds().values())
        took = [each.seconds for each in self._found if each.id != GREEN]
        return sum(took) / len(took) if took else 60.0

    def _of(self, id: str) -> list[Result]:
        return [each for each in reversed(self._found) if each.id == id]
