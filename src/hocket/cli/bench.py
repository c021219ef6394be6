"""`hocket bench`: measure communication over several libraries, compare libraries, and find regressions."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hocket.cli._bench_check import check, selftest
from hocket.cli._bench_compare import compare
from hocket.cli._bench_engines import engines
from hocket.cli._bench_options import (
    DEFAULT_SEED,
    Apis,
    Budget,
    Buffers,
    Dtype,
    Launches,
    Libraries,
    NumRanks,
    Precision,
    Seed,
    Sizes,
    choose,
    is_first,
    number_of_ranks,
    print_warnings,
)
from hocket.cli._bench_report import apps, report
from hocket.cli._completions import benchmarks
from hocket.cli._output import AsJson
from hocket.cli._sizes import read_size
from hocket.cli._verbs import add_verb, argument, optional
from hocket.errors import HocketError, InvalidArgument
from hocket.whole_file import check_output

_HELP = "Measure operations of communication libraries: through hocket, and directly through mpi4py and torch."

_MOST_SAMPLES = 400
_WIDTH = 25  # of names in lists
_TYPES = {"mpi_char": "uint8", "mpi_int": "int32", "mpi_float": "float32"}  # of OMB


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    bench = typer.Typer(help=_HELP, no_args_is_help=True, callback=_prepare)
    for verb in (run, compare, check, apps, engines, report, selftest):
        add_verb(bench, verb)
    add_verb(bench, list_all, "list")
    application.add_typer(bench, name="bench")


def run(
    names: Annotated[
        list[str] | None,
        argument(metavar="BENCHMARK...", help="Benchmarks; see bench list.", autocompletion=benchmarks),
    ] = None,
    benchmark: Annotated[str | None, optional(metavar="A,B", help="More benchmarks.")] = None,
    num_ranks: NumRanks = None,
    library: Libraries = "shm",
    buffer: Buffers = "numpy",
    api: Apis = "buffer",
    pickle: Annotated[bool, typer.Option("--pickle", help="The same as --api pickle.")] = False,
    sizes: Sizes = None,
    least: Annotated[str | None, optional("--min", metavar="SIZE", help="Smallest message size.")] = None,
    most: Annotated[str | None, optional("--max", metavar="SIZE", help="Largest message size.")] = None,
    message_size: Annotated[
        str | None,
        optional(
            "-m",
            "--message-size",
            metavar="[MIN:]MAX",
            help="Largest message size, or the smallest and the largest; the same as --min and --max.",
        ),
    ] = None,
    dtype: Dtype = None,
    op: Annotated[str, typer.Option(metavar="NAME", help="Operation of reductions: sum, prod, min, max.")] = "sum",
    window: Annotated[int, typer.Option("-W", "--window-size", metavar="N", help="Messages in flight.")] = 64,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Use memory that hocket's ranks share.")] = False,
    place: Annotated[str, optional(metavar="in,out", help="Collectives in place, out of place, or both.")] = "",
    in_place: Annotated[bool, typer.Option("-l", "--in-place", help="The same as --place in.")] = False,
    sync: Annotated[str, typer.Option(metavar="window|loop", help="How calls of collectives are timed.")] = "window",
    precision: Precision = 0.05,
    launches: Launches = 1,
    budget: Budget = 60.0,
    iterations: Annotated[
        int | None,
        optional("-i", "--iterations", metavar="N", help="Number of iterations. Default: as --ci needs."),
    ] = None,
    skip: Annotated[int, typer.Option("-x", "--skip", metavar="N", help="Warm-up iterations, not timed.")] = 0,
    validate: Annotated[bool, typer.Option(help="Check results again during the run.")] = True,
    seed: Seed = DEFAULT_SEED,
    full: Annotated[bool, typer.Option("-f", "--full", help="Show min and max times, in OSU's format.")] = False,
    percentiles: Annotated[
        str, typer.Option("-z", "--percentiles", metavar="A,B", help="Percentiles in OSU's format, such as 50,99.")
    ] = "",
    form: Annotated[
        str | None,
        optional("--format", metavar="NAME", help="Output format, such as osu; see bench list."),
    ] = None,
    output: Annotated[
        Path | None,
        optional("-o", "--output", metavar="FILE", help="File to write, by default in the format json."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Measure benchmarks over libraries, message sizes and kinds of memory, all of them interleaved.

    Every result is checked before it is timed, and again at random moments. Collectives are timed one call at a time:
    all ranks start a call at the same instant, and its time ends when the last rank is done. Messages between pairs of
    ranks are timed in loops. Samples are taken until the 95 % intervals of the medians are narrow enough.

    The options of OMB and OMB-Py work too: --benchmark, --min, --max, --pickle, -m MIN:MAX, -T.

    Examples:
      hocket bench run latency all_reduce
      hocket bench run omb-py --max 64KiB --pickle
      hocket bench run all_reduce --library shm,mpi4py:mpich,torch:gloo --sizes 8,64KiB,1MiB
      hocket bench run --benchmark osu_bw --buffer bytearray --pickle
      hocket bench run all_gather -n 4 --api buffer,pickle --format json --output all_gather.json
    """
    from hocket.bench.layout import ResultLayout
    from hocket.bench.run import run_points
    from hocket.bench.writers import find_writer
    from hocket.cli._bench_table import print_run, shown
    from hocket.measure import StopRule

    selected = [*(names or []), *(benchmark.split(",") if benchmark else [])]
    if not selected:
        raise InvalidArgument("name a benchmark; see: hocket bench list")
    if sync not in ("window", "loop"):
        raise InvalidArgument(f"--sync must be window or loop, not {sync!r}")
    size = number_of_ranks(num_ranks)
    first, last = _ends(least, most, message_size)
    if in_place and place not in ("", "in"):
        raise InvalidArgument(f"-l means --place in, but --place {place} is given too: omit one of them")
    if sizes and (first, last) != (None, None):
        raise InvalidArgument("--sizes lists all sizes: omit --min, --max and -m")
    points, targets = choose(
        selected,
        library,
        size,
        sizes,
        buffers=buffer.split(","),
        apis=["pickle"] if pickle else api.split(","),
        least=first,
        most=last,
        dtype=_TYPES.get(dtype, dtype) if dtype else None,
        reduction=op,
        window=window,
        symmetric=symmetric,
        places=["in"] if in_place else list(dict.fromkeys(place.split(","))),
    )
    if as_json and form not in (None, "json"):
        raise InvalidArgument(f"--json means --format json, but --format {form} is given too: omit one of them")
    name = "json" if as_json or (output is not None and form is None) else form
    write = None if name is None else find_writer(name)
    if output is not None and is_first():
        check_output(output)
    rule = StopRule(precision=precision, max_samples=_MOST_SAMPLES, time_limit_s=budget, seed=seed)
    if iterations is not None and iterations < 1:
        raise InvalidArgument(f"-i must be 1 or more, not {iterations}")
    if iterations is not None:  # the total number, as in OMB
        of_sample = -(-iterations // rule.min_samples)
        rule = replace(rule, iterations=of_sample, max_samples=rule.min_samples)
    if skip < 0:
        raise InvalidArgument(f"--skip must be 0 or more, not {skip}")
    layout = ResultLayout(full, _read_percentiles(percentiles))
    with shown(f"{len(points)} points over {len(targets)} libraries") as (on_round, on_results):
        ran = run_points(
            points,
            targets,
            size,
            rule,
            synchronised=sync == "window",
            validates=validate,
            num_warm_up=skip,
            num_launches=launches,
            on_round=on_round,
            on_results=on_results,
        )
    unsure = sum(each.precision is None or each.precision > precision for each in ran.results)
    more = [
        f"{unsure} of {len(ran.results)} medians are not known to {precision:.0%}: raise --budget, or measure on an "
        "idle machine"
    ]
    print_warnings([*ran.warnings, *(more if unsure else ())])
    if not is_first():
        return 0
    if write is not None:
        text = write(ran, layout)
        if output is None:
            sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        else:
            output.write_text(text)
    if write is None or output is not None:
        print_run(ran)
    return 0


def list_all(as_json: AsJson = False) -> int:
    """List benchmarks, libraries, kinds of memory, APIs and formats."""
    from hocket.bench.buffers.registry import buffer_kinds, find_kind
    from hocket.bench.drivers.base import APIS
    from hocket.bench.registry import benchmarks
    from hocket.bench.targets import known_targets, parse_targets
    from hocket.bench.writers import format_names

    found = benchmarks()
    obstacles = {
        "libraries": _obstacles(known_targets(), parse_targets),
        "buffers": _obstacles(sorted(buffer_kinds()), find_kind),
    }
    if as_json:
        listed = {each.name: {"family": each.family, "summary": each.summary} for each in found.values()}
        print(json.dumps({"benchmarks": listed, **obstacles, "apis": list(APIS), "formats": list(format_names())}))
        return 0
    for family in dict.fromkeys(each.family for each in found.values()):
        print(f"{family}:")
        for each in found.values():
            if each.family == family:
                print(f"  {each.name:{_WIDTH}}  {each.summary}")
    _print_available("libraries", obstacles["libraries"])
    print("  torch:...                  any other backend of torch.distributed")
    _print_available("buffers", obstacles["buffers"])
    print(f"APIs: {', '.join(APIS)}")
    print(f"formats: {', '.join(format_names())}")
    return 0


def _obstacles(names: Iterable[str], find: Callable[[str], object]) -> dict[str, str | None]:
    """Return for each name the reason why it cannot be used here; None for a name that can be used."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            find(name)
        except HocketError as error:
            found[name] = str(error)
        else:
            found[name] = None
    return found


def _print_available(what: str, obstacles: Mapping[str, str | None]) -> None:
    print(f"{what}:")
    for name, obstacle in obstacles.items():
        print(f"  {name}" if obstacle is None else f"  {name:{_WIDTH}}  unavailable: {obstacle}")


def _prepare() -> None:
    """Exit on SIGTERM and SIGHUP, so that started jobs are ended; under a launcher, only the first rank prints."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if not is_first():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends


def _ends(least: str | None, most: str | None, message_size: str | None) -> tuple[int | None, int | None]:
    """Return the smallest and the largest size, from either spelling of the options."""
    if message_size is not None:
        first, colon, last = message_size.rpartition(":")
        least, most = first if colon else least, last
    return None if least is None else read_size(least), None if most is None else read_size(most)


def _read_percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(each) for each in text.split(",") if each)
    except ValueError:
        raise InvalidArgument(f"--percentiles must be a list of numbers, for example 50,99, not {text!r}") from None
    wrong = [each for each in found if not 0 <= each <= 100]
    if wrong:
        raise InvalidArgument(f"a percentile must be from 0 to 100, not {wrong[0]:g}")
    return found
