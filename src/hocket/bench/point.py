"""One thing that is measured: a benchmark, of one size, over one library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hocket.measure import Key

PLACES = {"in": "in-place", "out": "out-of-place"}


@dataclass(frozen=True)
class Point:
    """One thing that is measured.

    Args:
        benchmark: its name.
        target: the library: a backend of hocket, "mix", "mpi4py:..." or "torch:...".
        nbytes: of a message, as OSU's benchmarks count them: of what a rank has for one other one; of reductions, and
            of what a broadcast's root has, all of it.
        buffer: kind of memory.
        api: how it is handed over.
        dtype: of elements.
        reduction: of operations that reduce.
        window: messages in flight, of bandwidths.
        symmetric: whether the memory is hocket's, shared by the ranks of a host.
        place: "in", a result stands where a rank's data stood; "out", elsewhere; "", as the operation has it by nature.

    Examples:
        >>> from hocket.bench import Point
        >>> point = Point("all_reduce", "mpi:mpich", 1024, dtype="float32", place="in")
        >>> point.key
        Key(case='all_reduce 1024 B', name='mpi:mpich numpy buffer float32 in-place')
    """

    benchmark: str
    target: str
    nbytes: int
    buffer: str = "numpy"
    api: str = "buffer"
    dtype: str = "uint8"
    reduction: str = "sum"
    window: int = 64
    symmetric: bool = False
    place: str = ""

    @property
    def key(self) -> Key:
        """Points with the same case are compared with each other."""
        return Key(f"{self.benchmark} {self.nbytes} B", self.way)

    @property
    def has_objects(self) -> bool:
        """Whether messages are pickled objects."""
        return self.api in ("pickle", "pickle5")

    def part_key(self, part: str) -> Key:
        """The name of what is timed beside it in the same rounds."""
        return Key(self.key.case, f"{self.way} [{part}]")

    @property
    def way(self) -> str:
        """What tells points of a case from each other."""
        return " ".join(self.words)

    @property
    def words(self) -> list[str]:
        """The library, and what else its way is made of."""
        words = [self.target, self.buffer, self.api]
        if self.dtype != "uint8":
            words.append(self.dtype)
        if self.reduction != "sum":
            words.append(self.reduction)
        if self.window != 64:
            words.append(f"{self.window} in flight")
        if self.symmetric:
            words.append("symmetric")
        if self.place:
            words.append(PLACES[self.place])
        return words


def labels_of(points: Iterable[Point]) -> tuple[dict[str, str], str]:
    """Return short names by way, without what all ways have in common, and that."""
    words = {each.way: each.words for each in points}
    first, *others = words.values()
    common = [word for word in first[1:] if all(word in each for each in others)]
    labels = {
        way: " ".join([each[0], *(word for word in each[1:] if word not in common)]) for way, each in words.items()
    }
    return labels, " ".join(common)
