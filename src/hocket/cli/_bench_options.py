"""Options that several verbs of `hocket bench` share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.boot.environment import read_world
from hocket.cli._sizes import read_size
from hocket.errors import BackendUnavailable, InvalidArgument

if TYPE_CHECKING:
    from hocket.bench.point import Point
    from hocket.bench.targets import Target

NumRanks = Annotated[
    int | None,
    typer.Option("-n", "--num-ranks", metavar="N", show_default=False, help="Default: 2, or those of the launcher."),
]
Libraries = Annotated[
    str,
    typer.Option("--library", "--backend", metavar="A,B", help="shm, mpi:*, torch:gloo, ...; see: bench list."),
]
Buffers = Annotated[str, typer.Option(metavar="A,B", help="Kinds of memory.")]
Apis = Annotated[str, typer.Option(metavar="A,B", help="How it is handed over.")]
Sizes = Annotated[
    str | None, typer.Option(metavar="A,B", show_default=False, help="Such as 8,64KiB; default: powers of two.")
]
Dtype = Annotated[str | None, typer.Option("-T", "--dtype", metavar="TYPE", show_default=False, help="Of elements.")]
Precision = Annotated[
    float, typer.Option("--ci", metavar="PART", help="Half of the 95 % interval of a median, as a part of it.")
]
Budget = Annotated[float, typer.Option(metavar="S", min=0.01, help="Seconds after which no further round begins.")]
Launches = Annotated[int, typer.Option(metavar="N", help="How often jobs are started.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the order of measurements.")]
DEFAULT_SEED = 20261123


def choose(
    names: Sequence[str], libraries: str, num_ranks: int, sizes: str | None, **options: Any
) -> tuple[list[Point], list[Target]]:
    """Return the points that options name, and their libraries.

    Args:
        names: of benchmarks.
        libraries, sizes: as the options have them.
        num_ranks: between which they are measured.
        options: further ones, of `choose_points`.

    Raises:
        InvalidArgument: something is not known, not installed, or cannot be measured so.
    """
    from hocket.bench.choice import choose_points
    from hocket.bench.run import check_points
    from hocket.bench.targets import parse_targets

    given = None if sizes is None else [read_size(each) for each in sizes.split(",")]
    try:
        targets = parse_targets(libraries, read_world().size > 1)
        points = choose_points(names, targets, sizes=given, **options)
    except BackendUnavailable as error:
        raise InvalidArgument(str(error)) from None
    check_points(points, num_ranks)
    return points, targets


def number_of_ranks(given: int | None) -> int:
    """Return how many ranks there are to be, or are: two, unless something else is said or a launcher has started them.

    Raises:
        InvalidArgument: something else is said, under a launcher.
    """
    if given is not None and given < 1:
        raise InvalidArgument(f"-n is 1 or more, not {given}")
    size = read_world().size
    if size == 1:
        return 2 if given is None else given
    if given not in (None, size):
        raise InvalidArgument(f"this is a job of {size} ranks: leave --num-ranks {given} out")
    return size


def jobs_of(given: int | None, verb: str) -> int:
    """Return how many ranks each job has that a verb starts.

    Raises:
        InvalidArgument: this process is a rank of a job itself.
    """
    if read_world().size > 1:
        raise InvalidArgument(f"hocket bench {verb} starts jobs itself: run it without a launcher")
    return number_of_ranks(given)


def is_first() -> bool:
    """Whether this process is the one that speaks: the first rank, under a launcher."""
    return read_world().rank == 0


def tell(warnings: Iterable[str]) -> None:
    """Print what a reader has to know, on stderr."""
    if is_first():
        for each in warnings:
            print(f"hocket bench: {each}", file=sys.stderr)


def check_least(least: float) -> None:
    """Raise InvalidArgument where a least difference is no part of the time."""
    if not 0 <= least < 1:
        raise InvalidArgument(f"--least is a part of the time, from 0 to 1, not {least}")
