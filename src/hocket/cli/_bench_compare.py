"""`hocket bench compare`: compare two libraries in one run, or two files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.boot.environment import read_world
from hocket.cli._bench_options import (
    DEFAULT_SEED,
    Budget,
    Dtype,
    NumRanks,
    Seed,
    Sizes,
    check_least,
    choose,
    is_first,
    number_of_ranks,
    print_warnings,
)
from hocket.cli._output import AsJson
from hocket.cli._tables import console_of, table_of
from hocket.cli._verbs import argument, optional
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.bench.comparison import RunComparison

EXIT_UNJUDGED = 3


def compare(
    first: Annotated[str, argument(metavar="A", help="A library or a file.")],
    second: Annotated[str, argument(metavar="B", help="The library or file to judge against A.")],
    benchmark: Annotated[str, typer.Option(metavar="A,B", help="Benchmarks for libraries.")] = "latency,all_reduce",
    num_ranks: NumRanks = None,
    buffer: Annotated[str, typer.Option(metavar="NAME", help="Kind of memory.")] = "numpy",
    sizes: Sizes = "8,64KiB,1MiB",
    dtype: Dtype = None,
    least: Annotated[float, typer.Option(metavar="PART", help="Ignore a smaller difference.")] = 0.02,
    launches: Annotated[
        int | None,
        optional(metavar="N", help="Launches of the jobs. Default: as needed, at least 9."),
    ] = None,
    budget: Budget = 90.0,
    seed: Seed = DEFAULT_SEED,
    as_json: AsJson = False,
) -> int:
    """Decide whether library or file B is slower than A. Exit code 1 if it is, 3 if there were too few samples or
    launches to judge every row.

    Two libraries are measured in the same rounds and compared round by round. This detects differences of a few percent
    even on a busy machine. The jobs are started several times, since two launches of the same job differ by some
    percent. Two files (of hocket bench run --format json --launches 9) need larger differences.

    Examples:
      hocket bench compare gloo shm
      hocket bench compare mpi4py:mpich shm --benchmark latency,all_gather --sizes 8,1MiB
      hocket bench compare before.json after.json --least 0.1
      hocket bench compare shm mix --sizes 8 --launches 1
    """
    from hocket.bench.comparison import compare as compare_results
    from hocket.bench.comparison import launches_needed
    from hocket.bench.formats.json import load_run
    from hocket.bench.run import run_points
    from hocket.measure import StopRule, progress

    check_least(least)
    files = [Path(each) for each in (first, second) if Path(each).suffix == ".json"]
    if len(files) == 1:
        raise InvalidArgument(f"{first} and {second} are a file and a library: compare two files or two libraries")
    if files:
        found = compare_results(*(load_run(each).results for each in files), least=least, paired=False)
    else:
        size = number_of_ranks(num_ranks)
        libraries = f"{first},{second}"
        points, targets = choose(benchmark.split(","), libraries, size, sizes, buffers=[buffer], dtype=dtype)
        # The precision requires as many rounds as the time allows, since the interval of a ratio is not known before.
        rule = StopRule(precision=0.002, max_samples=400, time_limit_s=budget, seed=seed)
        if len(targets) != 2:
            raise InvalidArgument(f"compare two libraries, not {len(targets)}: {first} and {second}")
        needed = max(9, launches_needed(len(points) // 2, paired=True))
        if launches is not None and launches < 1:
            raise InvalidArgument(f"--launches must be 1 or more, not {launches}")
        if launches is not None and 1 < launches < needed:
            raise InvalidArgument(f"{len(points) // 2} rows need {needed} launches to be judged, not {launches}")
        num_launches = 1 if read_world().size > 1 else launches or needed
        with progress(f"{first} and {second}", "points", is_first()) as on_round:
            ran = run_points(points, targets, size, rule, num_launches=num_launches, on_round=on_round)
        print_warnings(ran.warnings)
        by_library = [[each for each in ran.results if each.point.target == target.name] for target in targets]
        found = compare_results(*by_library, least=least, paired=True)
    if as_json:
        print(json.dumps({"first": first, "second": second, **found.to_json()}))
    else:
        _print(first, second, found)
    if found.is_slower:
        return 1
    return 0 if found.is_judged else EXIT_UNJUDGED


def _print(first: str, second: str, found: RunComparison) -> None:
    from hocket.bench.result import format_value

    title = f"{second}, judged by {first}, {found.rows[0].num_launches} launches"
    headings = ("", first, second, "", "times as long", "interval", "verdict")
    table = table_of(title, headings, left=("", "verdict"))
    for row in found.rows:
        interval = "-" if row.interval is None else f"{row.interval[0]:.3f} .. {row.interval[1]:.3f}"
        verdict = f"[bold red]{row.verdict}[/]" if row.verdict == "slower" else row.verdict
        table.add_row(
            row.case, format_value(row.first), format_value(row.second), row.unit, f"{row.ratio:.3f}", interval, verdict
        )
    console_of(140).print(table)
