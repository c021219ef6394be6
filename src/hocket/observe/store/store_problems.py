"""What went wrong in a store while nobody asked: it is shown until it is tried again with success."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

_MOST_PROBLEMS, _MOST_PROBLEM = 100, 500
"""How many are shown, and of each so many characters."""


class StoreProblems:
    """Problems by place; for all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._problems: dict[str, str] = {}

    def report(self, place: str, problem: str) -> None:
        """Show a problem; "": it is gone."""
        with self._lock:
            if not problem:
                self._problems.pop(place, None)
            elif len(self._problems) < _MOST_PROBLEMS or place in self._problems:
                self._problems[place] = problem[:_MOST_PROBLEM]

    def attempt(self, place: str, work: Callable[[], object]) -> None:
        """Do what is done again and again; a failure is shown, and ends nothing else."""
        try:
            work()
        except Exception as error:  # the thread must go on
            self.report(place, f"{type(error).__name__}: {error}")
        else:
            self.report(place, "")

    def listed(self) -> dict[str, str]:
        """Return all, by place."""
        with self._lock:
            return dict(self._problems)
