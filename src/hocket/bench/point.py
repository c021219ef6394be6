"""A point: one benchmark at one size over one library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hocket.measure import Key

PLACES = {"in": "in-place", "out": "out-of-place"}


@dataclass(frozen=True)
class Point:
    """One benchmark at one size over one library.

    Args:
        benchmark: name of the benchmark.
        target: the library: a backend of hocket, "mix", "mpi4py:..." or "torch:...".
        nbytes: message size in bytes, as OSU's benchmarks count it: the block for one other rank; for reductions and
            broadcasts, the whole array.
        buffer: kind of memory.
        api: how the memory is passed to the library.
        dtype: element type.
        reduction: operation of reductions.
        window: messages in flight, for bandwidths.
        symmetric: whether the memory is hocket's, shared by the ranks of a host.
        place: "in": the result replaces the rank's data; "out": it has its own array; "": the natural form of the
            operation.

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
        """Case and way; points with the same case are compared with each other."""
        return Key(f"{self.benchmark} {self.nbytes} B", self.way)

    @property
    def has_objects(self) -> bool:
        """Whether messages are pickled objects."""
        return self.api in ("pickle", "pickle5")

    def part_key(self, part: str) -> Key:
        """Return the key of a part that is timed beside the point in the same rounds."""
        return Key(self.key.case, f"{self.way} [{part}]")

    @property
    def way(self) -> str:
        """The name that distinguishes the points of a case."""
        return " ".join(self.words)

    @property
    def words(self) -> list[str]:
        """The words of the way: the library first, then its options."""
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
    """Return short names by way, without the words that all ways share; and these words."""
    words = {each.way: each.words for each in points}
    first, *others = words.values()
    common = [word for word in first[1:] if all(word in each for each in others)]
    labels = {
        way: " ".join([each[0], *(word for word in each[1:] if word not in common)]) for way, each in words.items()
    }
    return labels, " ".join(common)
