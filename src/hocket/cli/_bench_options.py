"""The options that several verbs of `hocket bench` share."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.boot.environment import read_world
from hocket.cli._sizes import read_size
from hocket.cli._verbs import optional
from hocket.errors import BackendUnavailable, InvalidArgument

if TYPE_CHECKING:
    from hocket.bench.point import Point
    from hocket.bench.targets import Target

NumRanks = Annotated[
    int | None,
    optional("-n", "--num-ranks", metavar="N", help="Number of ranks. Default: 2, or the launcher's."),
]
Libraries = Annotated[
    str,
    typer.Option(
        "--library", "--backend", metavar="A,B", help="Libraries: shm, mpi:*, torch:gloo, ...; see bench list."
    ),
]
Buffers = Annotated[str, typer.Option(metavar="A,B", help="Kinds of memory.")]
Apis = Annotated[str, typer.Option(metavar="A,B", help="How data is passed to the library.")]
Sizes = Annotated[str | None, optional(metavar="A,B", help="Sizes, such as 8,64KiB. Default: powers of two.")]
Dtype = Annotated[str | None, optional("-T", "--dtype", metavar="TYPE", help="Element type.")]
Precision = Annotated[
    float, typer.Option("--ci", metavar="PART", help="Target: half of a median's 95 % interval, relative to it.")
]
Budget = Annotated[float, typer.Option(metavar="S", min=0.01, help="Seconds after which no new round starts.")]
Launches = Annotated[int, typer.Option(metavar="N", help="Number of times that the jobs are started.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the order of measurements.")]
DEFAULT_SEED = 20261123


def choose(
    names: Sequence[str], libraries: str, num_ranks: int, sizes: str | None, **options: Any
) -> tuple[list[Point], list[Target]]:
    """Return the points that the options select, and their libraries.

    Args:
        names: names of benchmarks.
        libraries, sizes: texts of the options.
        num_ranks: number of ranks of each measurement.
        options: more arguments of `choose_points`.

    Raises:
        InvalidArgument: a name is unknown, a library is not installed, or a point cannot be measured.
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
    """Return the number of ranks: the given number, by default 2; under a launcher, the size of its job.

    Raises:
        InvalidArgument: the given number is below 1, or differs from the launcher's.
    """
    if given is not None and given < 1:
        raise InvalidArgument(f"-n must be 1 or more, not {given}")
    size = read_world().size
    if size == 1:
        return 2 if given is None else given
    if given not in (None, size):
        raise InvalidArgument(f"--num-ranks {given} differs from the launcher's job of {size} ranks: omit the option")
    return size


def jobs_of(given: int | None, verb: str) -> int:
    """Return the number of ranks of each job that a verb starts.

    Raises:
        InvalidArgument: this process was started by a launcher.
    """
    if read_world().size > 1:
        raise InvalidArgument(f"hocket bench {verb} starts jobs itself: run it without a launcher")
    return number_of_ranks(given)


def is_first() -> bool:
    """Whether this process prints: under a launcher, only the first rank does."""
    return read_world().rank == 0


def print_warnings(warnings: Iterable[str]) -> None:
    """Print warnings on stderr."""
    if is_first():
        for each in warnings:
            print(f"hocket bench: {each}", file=sys.stderr)


def check_least(least: float) -> None:
    """Raise InvalidArgument unless a least difference is from 0 to 1."""
    if not 0 <= least < 1:
        raise InvalidArgument(f"--least must be a fraction of the time, from 0 to below 1, not {least}")
