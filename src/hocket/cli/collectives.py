"""`hocket collectives`: list algorithms; verify, simulate, draw and export their schedules."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli._completions import collectives
from hocket.cli._links import Bandwidth, HostBandwidth, HostLatency, Latency, RanksPerHost, Reduce, read_fabric
from hocket.cli._output import AsJson
from hocket.cli._sizes import read_size
from hocket.cli._verbs import add_verb, argument, optional
from hocket.comm.policy import format_nbytes, format_seconds
from hocket.errors import InvalidArgument
from hocket.measure.pictures import check_picture_path
from hocket.suggestions import unknown

if TYPE_CHECKING:
    from hocket.collectives import Algorithm, Schedule
    from hocket.sim import Link

_HELP = "Collective algorithms as tables: list, verify, simulate, draw and export them."

Collective = Annotated[
    str | None,
    argument(metavar="COLLECTIVE", help="A collective, such as broadcast.", autocompletion=collectives),
]
Name = Annotated[str | None, argument(metavar="ALGORITHM", help="An algorithm, such as chain.")]
NumRanks = Annotated[int, typer.Option("-n", "--num-ranks", metavar="N", help="Number of ranks of the schedule.")]
Params = Annotated[
    list[str] | None,
    optional("--param", metavar="NAME=VALUE", help="Parameter of the algorithm; may be repeated."),
]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Size of the array, or of all blocks together.")]
File = Annotated[Path | None, optional("--file", metavar="SCHEDULE", help="A schedule written by `export`.")]


@dataclass(frozen=True)
class _Row:
    algorithm: str
    parameters: dict[str, Any]
    simulated_s: float
    formula_s: float | None  # None if ranks share links: formulas do not cover that
    rounds: int
    most_sent_nbytes: int


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    collectives = typer.Typer(help=_HELP, no_args_is_help=True)
    add_verb(collectives, list_all, "list")
    for verb in (verify, simulate, draw, export):
        add_verb(collectives, verb)
    application.add_typer(collectives, name="collectives")


def list_all(collective: Collective = None, as_json: AsJson = False) -> int:
    """List the algorithms with their formulas.

    Examples:
      hocket collectives list
      hocket collectives list broadcast --json
    """
    found = list(_algorithms(collective, None))
    if as_json:
        print(
            json.dumps(
                {
                    "algorithms": [
                        {
                            "collective": each.collective,
                            "name": each.name,
                            "formula": each.formula,
                            "parameters": dict(each.parameters),
                            "reference": each.reference,
                            "description": _first_line(each),
                        }
                        for each in found
                    ]
                }
            )
        )
        return 0
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(title="P ranks, q = ⌈log2 P⌉, m bytes, n blocks; α + mβ a message, mγ a reduction")
    for heading in ("collective", "algorithm", "time", "parameters"):
        grid.add_column(heading, overflow="fold")
    last = None
    for each in found:
        parameters = ", ".join(f"{name}={value}" for name, value in each.parameters.items())
        grid.add_row(each.collective if each.collective != last else "", each.name, each.formula, parameters)
        last = each.collective
    Console(width=None if sys.stdout.isatty() else 120).print(grid)
    return 0


def verify(
    collective: Collective = None,
    name: Name = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="A..B", show_default="1..64", help="Numbers of ranks, such as 8, 1..64 or 3,5,100."),
    ] = None,
    param: Params = None,
    file: File = None,
    as_json: AsJson = False,
) -> int:
    """Prove schedules correct: every rank ends with the collective's result, each block is delivered or reduced exactly
    once, and no rank has more messages at a time than ports.

    Verifies one algorithm, all algorithms of a collective, all algorithms, or a file written by `export`.

    Examples:
      hocket collectives verify --ranks 1..256
      hocket collectives verify broadcast circulant --ranks 2..1024 --param num_blocks=16
      hocket collectives verify --file mine.json
    """
    from hocket.collectives import verify as prove
    from hocket.collectives.serialise import load_schedule
    from hocket.measure.progress_bar import progress

    if file is not None:
        if ranks is not None or collective is not None or param:
            raise InvalidArgument("--file names one schedule: leave out COLLECTIVE, --ranks and --param")
        schedule = load_schedule(file)
        prove(schedule)
        print(json.dumps({"verified": [repr(schedule)]}) if as_json else f"proven: {schedule!r}")
        return 0
    numbers = _read_ranks("1..64" if ranks is None else ranks)
    found = list(_algorithms(collective, name))
    given = _read_params(param)
    proven: dict[str, int] = {}
    done, total = 0, len(found) * len(numbers)
    with progress("verify", "schedules") as show:
        for each in found:
            count = 0
            for num_ranks in numbers:
                if each.restriction(num_ranks) is None:
                    prove(each.schedule(num_ranks, **given))
                    count += 1
                done += 1
                show(done, total, f"{each.collective} by {each.name}")
            proven[f"{each.collective} by {each.name}"] = count
    if as_json:
        print(json.dumps({"verified": proven}))
    else:
        for text, count in proven.items():
            print(f"proven: {text}, {count} numbers of ranks")
    return 0


def simulate(
    collective: Annotated[
        str,
        argument(metavar="COLLECTIVE", help="A collective, such as broadcast.", autocompletion=collectives),
    ],
    name: Name = None,
    num_ranks: NumRanks = 8,
    size: Size = "1MiB",
    latency: Latency = 2.0,
    bandwidth: Bandwidth = 12.5,
    reduce: Reduce = float("inf"),
    ranks_per_host: RanksPerHost = None,
    host_latency: HostLatency = 30.0,
    host_bandwidth: HostBandwidth = 1.25,
    param: Params = None,
    as_json: AsJson = False,
) -> int:
    """Predict the times of algorithms on a link, by formula and by simulation of their schedules.

    Nothing is measured: --latency, --bandwidth and --reduce describe the link. Without --param, the number of blocks is
    the best by the formula.

    Examples:
      hocket collectives simulate broadcast -n 64 --size 16MiB --latency 2 --bandwidth 12.5
      hocket collectives simulate all_reduce ring -n 1024 --size 1MiB --json
      hocket collectives simulate all_reduce -n 16 --ranks-per-host 4 --size 4M --host-latency 30 --host-bandwidth 1.25
    """
    from hocket.collectives.simulate import simulate as run
    from hocket.sim import Hosts, Link

    fabric = read_fabric(latency, bandwidth, reduce, ranks_per_host, host_latency, host_bandwidth)
    link = Link.of(latency, bandwidth, reduce)
    slowest = fabric.outer if isinstance(fabric, Hosts) else link
    nbytes = read_size(size)
    rows = []
    for each in _algorithms(collective, name):
        refusal = each.restriction(num_ranks)
        if refusal is not None:
            if name is not None:
                raise InvalidArgument(f"{collective} by {name} does not support {num_ranks} ranks: {refusal}")
            continue
        own = {"ranks_per_host": ranks_per_host} if ranks_per_host and "ranks_per_host" in each.parameters else {}
        schedule = _build(each, num_ranks, _read_params(param) | own, slowest, nbytes)
        simulated = run(schedule, nbytes, fabric)
        rows.append(
            _Row(
                each.name,
                dict(schedule.parameters),
                simulated.seconds,
                None if ranks_per_host else each.seconds(link, num_ranks, nbytes, **schedule.parameters),
                schedule.num_rounds,
                int(simulated.bytes_sent.max(initial=0)),
            )
        )
    rows.sort(key=lambda row: row.simulated_s)
    if as_json:
        found = [asdict(row) for row in rows]
        print(json.dumps({"collective": collective, "num_ranks": num_ranks, "nbytes": nbytes, "simulated": found}))
        return 0
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid(title=f"{collective} of {format_nbytes(nbytes)} between {num_ranks} ranks, simulated")
    for heading in ("algorithm", "parameters", "simulated", "formula", "rounds", "most sent by a rank"):
        grid.add_column(heading, justify="left" if heading in ("algorithm", "parameters") else "right")
    for row in rows:
        grid.add_row(
            row.algorithm,
            ", ".join(f"{key}={value}" for key, value in row.parameters.items()),
            format_seconds(row.simulated_s),
            "-" if row.formula_s is None else format_seconds(row.formula_s),
            str(row.rounds),
            format_nbytes(row.most_sent_nbytes),
        )
    Console(width=None if sys.stdout.isatty() else 120).print(grid)
    return 0


def draw(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PICTURE", help="File to write, such as chain.png or chain.svg.")
    ],
    collective: Collective = None,
    name: Name = None,
    num_ranks: NumRanks = 8,
    time: Annotated[bool, typer.Option("--time", help="Draw simulated time instead of rounds.")] = False,
    size: Size = "1MiB",
    latency: Latency = 2.0,
    bandwidth: Bandwidth = 12.5,
    reduce: Reduce = float("inf"),
    param: Params = None,
    file: File = None,
    as_json: AsJson = False,
) -> int:
    """Draw a schedule as PNG, SVG or PDF.

    Examples:
      hocket collectives draw broadcast chain -n 6 --param num_blocks=4 -o chain.png
      hocket collectives draw all_reduce rabenseifner -n 8 --size 1MiB --time -o halving.svg
    """
    from hocket.collectives.draw import draw_schedule
    from hocket.collectives.serialise import load_schedule
    from hocket.collectives.simulate import simulate as run
    from hocket.sim import Link

    check_picture_path(output)
    link, nbytes = Link.of(latency, bandwidth, reduce), read_size(size)
    if file is not None:
        schedule = load_schedule(file)
    else:
        schedule = _build(_one(collective, name), num_ranks, _read_params(param), link, nbytes)
    draw_schedule(schedule, output, run(schedule, nbytes, link) if time else None)
    print(json.dumps({"written": str(output)}) if as_json else output)
    return 0


def export(
    collective: Collective = None,
    name: Name = None,
    num_ranks: NumRanks = 8,
    param: Params = None,
    as_json: Annotated[bool, typer.Option("--json", help="Has no effect: the output is always JSON.")] = False,
) -> int:
    """Write a schedule as JSON to standard output.

    Examples:
      hocket collectives export all_gather bruck -n 5 > bruck.json
    """
    from hocket.collectives.serialise import to_json

    sys.stdout.write(to_json(_one(collective, name).schedule(num_ranks, **_read_params(param))))
    return 0


def _algorithms(collective: str | None, name: str | None) -> Iterator[Algorithm]:
    from hocket.collectives import algorithms, find_algorithm
    from hocket.collectives.semantics import SEMANTICS

    if collective is not None and collective not in SEMANTICS:
        raise InvalidArgument(unknown("collective", collective, SEMANTICS))
    if collective is not None and name is not None:
        yield find_algorithm(collective, name)
        return
    yield from algorithms(collective)


def _one(collective: str | None, name: str | None) -> Algorithm:
    if collective is None or name is None:
        raise InvalidArgument("name a collective and an algorithm, such as: broadcast chain")
    return next(_algorithms(collective, name))


def _build(algorithm: Algorithm, num_ranks: int, given: dict[str, Any], link: Link, nbytes: int) -> Schedule:
    if "num_blocks" in algorithm.parameters and "num_blocks" not in given:
        given["num_blocks"] = algorithm.best_num_blocks(link, num_ranks, nbytes, **given)
    return algorithm.schedule(num_ranks, **given)


def _read_params(param: list[str] | None) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for text in param or ():
        match = re.fullmatch(r"(\w+)=(\w+)", text)
        if match is None:
            raise InvalidArgument(f"{text!r} is not a parameter; write, for example, num_blocks=8")
        given[match[1]] = int(match[2]) if match[2].isdecimal() else match[2]
    return given


def _read_ranks(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", part.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise InvalidArgument(f"{part!r} is not a number of ranks; write, for example, 8, 1..64 or 3,5,100")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def _first_line(algorithm: Algorithm) -> str:
    return (algorithm.build.__doc__ or "").strip().partition("\n")[0]
