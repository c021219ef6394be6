"""`hocket bench report`: write a page of results. `hocket bench apps`: measure and model applications."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._bench_options import DEFAULT_SEED, Budget, NumRanks, Precision, Seed, jobs_of
from hocket.cli._links import Bandwidth, HostBandwidth, HostLatency, Latency, RanksPerHost, read_fabric
from hocket.cli._output import AsJson
from hocket.cli._tables import console_of, table_of
from hocket.cli._verbs import argument, optional
from hocket.errors import InvalidArgument
from hocket.whole_file import check_output, write_text

if TYPE_CHECKING:
    from hocket.bench.apps.speedup import Speedup
    from hocket.bench.run import Run


def report(
    files: Annotated[list[Path], argument(metavar="FILE...", help="Files of bench run --format json.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PAGE", help="HTML page to write.")] = Path(
        "bench.html"
    ),
    pictures: Annotated[Path | None, optional(metavar="FOLDER", help="Also write the pictures as PNG files.")] = None,
    as_json: AsJson = False,
) -> int:
    """Write results of benchmarks as one HTML file that loads nothing: the page of `hocket open`.

    Examples:
      hocket bench run latency all_reduce --library shm,gloo --format json -o results.json
      hocket bench report results.json -o results.html
      hocket bench report before.json after.json -o both.html --pictures pictures
    """
    from hocket.bench.formats.json import load_run
    from hocket.observe.serve.opened_results import open_results
    from hocket.observe.serve.report import page_of_runs

    runs = {each.stem: load_run(each) for each in files}
    if len(runs) < len(files):
        raise InvalidArgument(f"files must have different names, not {', '.join(map(str, files))}")
    check_output(output)
    if pictures is not None and pictures.is_file():
        raise InvalidArgument(f"{pictures} is a file; name a folder for the pictures")
    page = page_of_runs([], open_results(files))
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
        for name, run in runs.items():
            _draw(run, pictures, "" if len(runs) == 1 else f"{name}-")
    write_text(output, page)
    print(json.dumps({"written": str(output)}) if as_json else f"wrote {output}")
    return 0


def _draw(run: Run, folder: Path, prefix: str) -> None:
    from hocket.bench.draw import draw_benchmark

    ordered = sorted(run.results, key=lambda each: each.point.benchmark)
    for benchmark, results in groupby(ordered, key=lambda each: each.point.benchmark):
        draw_benchmark(list(results), folder / f"{prefix}{benchmark}.png")


def apps(
    names: Annotated[list[str] | None, argument(metavar="NAME...", help="Applications. Default: all.")] = None,
    num_ranks: NumRanks = None,
    scale: Annotated[int | None, optional(metavar="N", help="Size of the problem in rows.")] = None,
    modelled: Annotated[str, typer.Option(metavar="A,B", help="Numbers of ranks to simulate.")] = "224",
    latency: Latency = 0.5,
    bandwidth: Bandwidth = 10.0,
    ranks_per_host: RanksPerHost = 56,
    host_latency: HostLatency = 2.0,
    host_bandwidth: HostBandwidth = 12.5,
    precision: Precision = 0.02,
    budget: Budget = 60.0,
    seed: Seed = DEFAULT_SEED,
    as_json: AsJson = False,
) -> int:
    """Measure the speed-up of applications on several ranks, and model it for many ranks.

    matmul: the product of two matrices. knn: classification of rows by their nearest neighbours. kmeans: clustering.
    Solutions are compared with those of NumPy and scikit-learn. The speed-up is shown beside the core factor, which is
    the speed-up of independent processes. Times for more ranks are simulated, from the time that a share of the work
    takes here.

    Examples:
      hocket bench apps
      hocket bench apps matmul --scale 2048 -n 2
      hocket bench apps knn --modelled 56,112,224 --ranks-per-host 56 --host-bandwidth 12.5 --json
    """
    from hocket.bench.apps.registry import find_problem, problems
    from hocket.bench.apps.speedup import measure_speedup
    from hocket.measure import StopRule, progress

    chosen = names or list(problems())
    size = jobs_of(num_ranks, "apps")
    for name in chosen:
        problem = find_problem(name)
        least = max(size, problem.least_scale)
        if scale is not None and scale < least:
            raise InvalidArgument(f"--scale of {name} on {size} ranks must be at least {least}, not {scale}")
        if problem.has_oracle:
            problem.oracle("base")  # so that an error is raised before a process is started
    try:
        numbers = [int(each) for each in modelled.split(",")] if modelled else []
    except ValueError:
        raise InvalidArgument(f"--modelled must list numbers of ranks, such as 56,224, not {modelled!r}") from None
    fabric = read_fabric(latency, bandwidth, float("inf"), ranks_per_host, host_latency, host_bandwidth)
    rule = StopRule(precision=precision, time_limit_s=budget, seed=seed)
    found = []
    for name in chosen:
        with progress(name, "times") as on_round:
            found.append(measure_speedup(name, size, scale, rule, modelled=numbers, fabric=fabric, on_round=on_round))
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
    else:
        _print(found)
    return 0


def _print(found: list[Speedup]) -> None:
    headings = ("", "rows", "one process", "all ranks", "speed-up", "core factor", "part of it", "interval")
    table = table_of(f"applications, {found[0].num_ranks} ranks, measured", headings, left=("",))
    for each in found:
        interval = "-" if each.interval is None else f"{each.interval[0]:.2f} .. {each.interval[1]:.2f}"
        table.add_row(
            each.name,
            str(each.scale),
            f"{1e3 * each.alone_s:.1f} ms",
            f"{1e3 * each.together_s:.1f} ms",
            f"{each.speedup:.2f}",
            f"{each.core_factor:.2f}",
            f"{each.share:.2f}",
            interval,
        )
    console = console_of(120)
    console.print(table)
    for each in found:
        for more in each.modelled:
            console.print(
                f"{each.name}, {more.num_ranks} ranks, MODELLED: {1e3 * more.seconds:.2f} ms, {more.speedup:.0f} times "
                "as fast as one process",
                highlight=False,
            )
