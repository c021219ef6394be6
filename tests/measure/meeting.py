"""Ranks that are threads, and what they say to each other."""

import threading
from collections.abc import Callable


class Meeting:
    """Where ranks that are threads meet."""

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks, timeout=20)
        self._values: list[list[float]] = [[] for _ in range(num_ranks)]

    def gather(self, rank: int, mine: list[float]) -> list[list[float]]:
        """As of `Team`."""
        self._values[rank] = mine
        self.barrier.wait()
        everyone = list(self._values)
        self.barrier.wait()
        return everyone


def on_threads(num_ranks: int, body: Callable[[int], object]) -> None:
    """Call something for each rank, each in a thread of its own."""
    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
