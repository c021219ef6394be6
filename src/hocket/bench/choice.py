"""Make points from lists of benchmarks, libraries, sizes and options."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hocket.bench.buffers.registry import find_kind
from hocket.bench.drivers.base import APIS
from hocket.bench.families.collectives import itemsize_of
from hocket.bench.patterns import REDUCTIONS
from hocket.bench.point import PLACES, Point
from hocket.bench.registry import Benchmark, find_benchmark, find_group
from hocket.bench.targets import Target
from hocket.errors import InvalidArgument
from hocket.suggestions import check_known


def choose_points(
    names: Sequence[str],
    targets: Sequence[Target],
    *,
    buffers: Sequence[str] = ("numpy",),
    apis: Sequence[str] = ("buffer",),
    sizes: Sequence[int] | None = None,
    least: int | None = None,
    most: int | None = None,
    dtype: str | None = None,
    reduction: str = "sum",
    window: int = 64,
    symmetric: bool = False,
    places: Sequence[str] = ("",),
) -> list[Point]:
    """Return the points of all combinations.

    Args:
        names: names of benchmarks, in the spelling of hocket, OMB or OMB-Py, or of groups, see `find_group`.
        targets: libraries.
        buffers, apis: kinds of memory, and ways to pass it to the library.
        sizes: message sizes in bytes; None: powers of two from `least` to `most`, by default the range of each
            benchmark.
        dtype: element type; None: float32 for reductions, except on bytearrays; otherwise bytes.
        reduction, window, symmetric: as in `Point`.
        places: "in" and "out", for collectives with equal parts; "": the natural form of each operation.

    Raises:
        InvalidArgument: a name is unknown, a size is not a whole number of elements, or no point can be measured;
            names the value. If some points can be measured, the others are left out at run time.
        BackendUnavailable: the package of a kind of memory is not installed.

    Examples:
        >>> from hocket.bench import choose_points, parse_targets
        >>> points = choose_points(["all_reduce"], parse_targets("shm"), sizes=[8, 1024])
        >>> [(point.benchmark, point.target, point.nbytes, point.dtype) for point in points]
        [('all_reduce', 'shm', 8, 'float32'), ('all_reduce', 'shm', 1024, 'float32')]
    """
    kinds = [find_kind(each) for each in buffers]
    for api in apis:
        check_known("API", api, APIS)
    for kind in kinds:
        if "dlpack" in apis and not kind.has_dlpack:
            raise InvalidArgument(f"{kind.name} arrays do not support DLPack: choose another API than dlpack")
        if symmetric and kind.name != "numpy":
            raise InvalidArgument(f"symmetric memory needs numpy arrays, not {kind.name} arrays")
    if symmetric and not {"buffer", "dlpack"}.issuperset(apis):
        raise InvalidArgument(f"symmetric memory needs the API buffer or dlpack, not objects: {', '.join(apis)}")
    for place in places if list(places) != [""] else ():
        check_known("place", place, PLACES)
    check_known("reduction", reduction, REDUCTIONS)
    if window < 1:
        raise InvalidArgument(f"window must be 1 message or more, not {window}")
    points = []
    for benchmark in dict.fromkeys(each for name in names for each in find_group(name)):
        has_bytes = any(kind.name == "bytearray" for kind in kinds)
        element_type = dtype or ("float32" if benchmark.reduces and not has_bytes else "uint8")
        for kind in kinds:
            kind.check_dtype(element_type)
        for nbytes in _choose_sizes(benchmark, element_type, sizes, least, most):
            points += [
                Point(
                    benchmark.name,
                    target.name,
                    nbytes,
                    kind.name,
                    api,
                    element_type,
                    reduction if benchmark.reduces else "sum",
                    window if benchmark.has_window else 64,
                    symmetric,
                    place,
                )
                for target, kind, api, place in product(targets, kinds, apis, places)
            ]
    through = {each.name: each.through for each in targets}
    obstacles = [_obstacle(each, through[each.target]) for each in points]
    if all(obstacles):
        raise InvalidArgument("; ".join(dict.fromkeys(obstacles)))
    return points


def _obstacle(point: Point, through: str) -> str:
    """Return why a point cannot be measured, as far as this is known before its library is opened; or ""."""
    if point.api == "pickle5" and through != "mpi4py":
        return f"{point.target} does not support {point.api}: choose --api pickle, or --library mpi4py:mpich"
    if point.symmetric and through != "hocket":
        return f"{point.target} has no symmetric memory: choose a backend of hocket, such as shm"
    return find_benchmark(point.benchmark).obstacle(point)


def _choose_sizes(
    benchmark: Benchmark, dtype: str, sizes: Sequence[int] | None, least: int | None, most: int | None
) -> Sequence[int]:
    if not benchmark.has_sizes:
        return [0]
    itemsize = itemsize_of(dtype)
    if sizes is None:
        first = benchmark.least_nbytes if least is None else least
        first = max(first, itemsize) if benchmark.reduces or first else first  # OMB starts at one element
        sizes = powers_of_two(first, max(first, benchmark.most_nbytes) if most is None else most)
    for each in sizes:
        if each < 0:
            raise InvalidArgument(f"a size must be 0 bytes or more, not {each}")
        if each % itemsize:
            raise InvalidArgument(f"sizes must be multiples of {itemsize}, the bytes of {dtype}, not {each} bytes")
        if not each and benchmark.unit != "us":
            raise InvalidArgument(f"{benchmark.name} measures bytes per second: no size may be {each} bytes")
    return sizes


def powers_of_two(least: int, most: int) -> list[int]:
    """Return `least`, the powers of two between, and `most`; `least` may be 0.

    Raises:
        InvalidArgument: `least` is larger than `most`, or negative.
    """
    if least < 0 or most < least:
        raise InvalidArgument(f"sizes must go from 0 or more to at least the same, not from {least} to {most}")
    between = [1 << bits for bits in range(most.bit_length()) if least < 1 << bits < most]
    return [least] if most == least else [least, *between, most]
