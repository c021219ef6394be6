"""`hocket bench compare`: two libraries in one run, or two files."""

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
    tell,
)
from hocket.cli._output import AsJson
from hocket.cli._tables import console_of, table_of
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.bench.comparison import RunComparison

EXIT_UNJUDGED = 3
HELP = """Say whether one library, or one file of results, is slower than another one. Exit code 1 if it is, 3 if there
was too little to judge every row.

Two libraries are measured in the same rounds, and compared round by round, which shows differences of a few percent on
a machine that is never quiet; and their jobs are started several times, since two launches of the same job differ by
some percent. Two files (of hocket bench run --format json --launches 9) need larger differences."""
EXAMPLES = """\b
Examples:
  hocket bench compare gloo shm
  hocket bench compare mpi4py:mpich shm --benchmark latency,all_gather --sizes 8,1MiB
  hocket bench compare before.json after.json --least 0.1
  hocket bench compare shm mix --sizes 8 --launches 1"""


def compare(
    first: Annotated[str, typer.Argument(metavar="A", show_default=False, help="A library, or a file.")],
    second: Annotated[str, typer.Argument(metavar="B", show_default=False, help="That is judged by it.")],
    benchmark: Annotated[str, typer.Option(metavar="A,B", help="Of libraries.")] = "latency,all_reduce",
    num_ranks: NumRanks = None,
    buffer: Annotated[str, typer.Option(metavar="NAME", help="Kind of memory.")] = "numpy",
    sizes: Sizes = "8,64KiB,1MiB",
    dtype: Dtype = None,
    least: Annotated[float, typer.Option(metavar="PART", help="A difference that is smaller is none.")] = 0.02,
    launches: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="Of the jobs; default: as many as it takes, 9 or more."),
    ] = None,
    budget: Budget = 90.0,
    seed: Seed = DEFAULT_SEED,
    as_json: AsJson = False,
) -> int:
    """Compare, and print the rows."""
    from hocket.bench.comparison import compare as compare_results
    from hocket.bench.comparison import launches_needed
    from hocket.bench.files import load_run
    from hocket.bench.run import run_points
    from hocket.measure import StopRule, progress

    check_least(least)
    files = [Path(each) for each in (first, second) if Path(each).suffix == ".json"]
    if len(files) == 1:
        raise InvalidArgument(f"{first} and {second} are a file and a library: compare two of one kind")
    if files:
        found = compare_results(*(load_run(each).results for each in files), least=least, paired=False)
    else:
        size = number_of_ranks(num_ranks)
        libraries = f"{first},{second}"
        points, targets = choose(benchmark.split(","), libraries, size, sizes, buffers=[buffer], dtype=dtype)
        # As many rounds as there is time for: the interval is that of a ratio, which is not known beforehand.
        rule = StopRule(precision=0.002, max_samples=400, time_limit_s=budget, seed=seed)
        if len(targets) != 2:
            raise InvalidArgument(f"two libraries are compared, not {len(targets)}: {first} and {second}")
        needed = max(9, launches_needed(len(points) // 2, paired=True))
        if launches is not None and 1 < launches < needed:
            raise InvalidArgument(f"{len(points) // 2} rows take {needed} launches to be judged, not {launches}")
        num_launches = 1 if read_world().size > 1 else launches or needed
        with progress(f"{first} and {second}", "points", is_first()) as on_round:
            ran = run_points(points, targets, size, rule, num_launches=num_launches, on_round=on_round)
        tell(ran.warnings)
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
