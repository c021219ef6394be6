"""`hocket tune`: measure which backend is the fastest for each operation, and show, check and export the table."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hocket.boot.nodes import Nodes
from hocket.cli._compare import compare
from hocket.cli._names import Backends, read_backends
from hocket.cli._nodes import MasterAddr, MasterPort, NodeRank, NumNodes
from hocket.cli._output import AsJson
from hocket.cli._rank_job import result_of_ranks, run_ranks
from hocket.cli._sizes import read_size
from hocket.cli._tables import console_of, table_of
from hocket.cli._verbs import add_verb, argument, optional
from hocket.comm.policy import LARGEST_NBYTES, format_nbytes, format_seconds
from hocket.errors import InvalidArgument
from hocket.measure.pictures import check_picture_path
from hocket.measure.reporting import NOT_JUDGED
from hocket.tune.draw import draw_table
from hocket.tune.find import default_path, find_table
from hocket.tune.observations import Observations, Regret, learn_from, load_observations, regrets_of
from hocket.tune.recheck import RecheckedPoint
from hocket.tune.sweep import SIZES, Sweep
from hocket.tune.table import Table, TableRow, load_table, save_table
from hocket.whole_file import check_output

_HELP = "Measure which backend is the fastest for which operation and size; hocket.init() chooses by the result."
TablePath = Annotated[Path | None, argument(metavar="TABLE", help="File of a table. Default: the user's.")]


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    tune = typer.Typer(help=_HELP, no_args_is_help=True)
    for verb in (run, learn, show, check, export, draw, compare):
        add_verb(tune, verb)
    application.add_typer(tune, name="tune")


def run(
    num_ranks: Annotated[int, typer.Option("-n", "--num-ranks", metavar="N", help="Number of ranks on this host.")] = 2,
    backends: Backends = None,
    ops: Annotated[str | None, optional(metavar="A,B", help="Operations. Default: all.")] = None,
    sizes: Annotated[
        str | None,
        optional(metavar="A,B", help="Sizes, such as 16,64KiB,1MiB. Default: 16 B to 16 MiB."),
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", help="Number of rounds, 6 or more.")] = 7,
    schedules: Annotated[bool, typer.Option(help="Also measure the schedules that are fast by the model.")] = True,
    output: Annotated[
        Path | None,
        optional(
            "-o",
            "--output",
            metavar="TABLE",
            help="File to write. Default: the user's table, ~/.cache/hocket/table.json, which programs use unless they "
            "name another.",
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Keep rows of the old table that are not measured again.")
    ] = False,
    beside_others: Annotated[
        bool, typer.Option("--beside-others", help="Write the table even if other programs kept the machine busy.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the path and the number of rows as JSON.")] = False,
    num_nodes: NumNodes = 1,
    node_rank: NodeRank = 0,
    master_addr: MasterAddr = "127.0.0.1",
    master_port: MasterPort = None,
) -> int:
    """Measure every operation at every size over every backend, all of them interleaved, and write the table.

    This takes one to two minutes for 2 ranks. Measure with as many ranks as your programs have. If other programs take
    more than a quarter of the CPU time meanwhile, nothing is written and the exit code is 3.

    Examples:
      hocket tune run -n 2
      hocket tune run -n 4 --backends shm,mpi --merge
      hocket tune run -n 2 --ops all_reduce,all_to_all --sizes 4KiB,1MiB --output here.json
    """
    nodes = Nodes(num_nodes, node_rank, master_addr, master_port)
    if num_ranks * num_nodes < 2:
        raise InvalidArgument(f"-n must be 2 or more, not {num_ranks}: one rank has no peer to communicate with")
    chosen = [read_size(each) for each in sizes.split(",")] if sizes else list(SIZES)
    sweep = {"rounds": rounds, "schedules": schedules, "sizes": chosen}
    if ops is not None:
        sweep["ops"] = ops.split(",")
    Sweep(**sweep)  # type: ignore[arg-type]  # raises before anything starts
    path = output or default_path(num_nodes)
    names = read_backends(backends)
    target = path.resolve()  # so that a symbolic link stays one
    if node_rank == 0:
        _check_output(target)
    if merge and path.exists():
        load_table(path)  # raises before anything is measured
    options = {"backends": names, "sweep": sweep, "output": str(target), "merge": merge, "beside_others": beside_others}
    exit_code = run_ranks("_tune_rank", options, num_ranks, nodes, explained=[NOT_JUDGED])
    if exit_code == 0:
        table = load_table(path)
        print(
            json.dumps({"path": str(path), "rows": len(table.rows), "hash": table.hash})
            if as_json
            else _description(table)
        )
    return exit_code


def _check_output(path: Path) -> None:
    """Check that a table can be written, and create its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error}; name another file by --output") from None
    check_output(path, is_replaced=True)


def learn(
    source: Annotated[
        Path, typer.Option("--from", metavar="RUN", help="Folder of a recorded run, or a file of its observations.")
    ],
    table: TablePath = None,
    output: Annotated[
        Path | None, optional("-o", "--output", metavar="FILE", help="File to write. Default: the table itself.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what the run says; write nothing.")] = False,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="Also accept a run of other hosts, if they are like this one.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Correct a table by the times of a run that `hocket observe run` has recorded, and show what its choices cost.

    Of each operation counts the time on the rank that came last, which contains no waiting. Choices change where a run
    has used two libraries or algorithms at one size, for example with `hocket run --learn`; else only times do.

    Examples:
      hocket tune learn --from run-1 --dry-run
      hocket tune learn --from run-1
      hocket tune learn --from run-1 here.json --output corrected.json
    """
    seen = _observations(source)
    host = socket.gethostname()
    if not any_host and host not in seen.hosts:
        hosts = ", ".join(seen.hosts) or "no host"
        raise InvalidArgument(f"{source} is of {hosts}, and this is {host}: times differ; --any-host accepts it")
    loaded = _load(table)
    learned, regrets = learn_from(loaded, seen.rows), regrets_of(seen.rows, loaded)
    path = output or Path(loaded.path)
    if not dry_run and learned.used:
        _check_output(path.resolve())
        save_table(learned.table, path.resolve())
    if as_json:
        shown = [{**asdict(each), "observation": {**asdict(each.observation), "seconds": each.observation.median_s}}
                 for each in regrets]  # fmt: skip
        facts = {"used": len(learned.used), "unused": len(learned.unused), "changes": learned.changes}
        print(json.dumps({"path": None if dry_run or not learned.used else str(path), **facts, "regrets": shown}))
        return 0
    _print_regrets(str(source), regrets)
    for op, dtypes, num_ranks in learned.changes:
        print(f"{op}, {dtypes}, {num_ranks} ranks: another choice at some sizes")
    others = f"; {len(learned.unused)} others have too few times or do not belong to the table"
    where = "nothing was written" if dry_run or not learned.used else f"now in {path}"
    print(f"times of {len(learned.used)} operations, {where}{others if learned.unused else ''}")
    return 0


def _observations(source: Path) -> Observations:
    if not source.is_dir():
        return load_observations(source)
    from hocket.observe import observations_of, open_run

    return observations_of(open_run(source))


def _print_regrets(title: str, regrets: Sequence[Regret]) -> None:
    if not regrets:
        print(f"{title}: no operation of which the table has times")
        return
    headings = ("operation", "size", "ranks", "count", "carried by", "observed", "fastest by the table", "its time",
                "cost")  # fmt: skip
    table = table_of(f"{title}: what the choices cost by the table", headings, ("operation", "carried by"))
    for each in regrets:
        row = each.observation
        table.add_row(
            f"{row.op} {row.dtypes}", format_nbytes(row.nbytes), str(row.num_ranks), str(row.count), row.carrier,
            format_seconds(row.median_s), each.best,
            f"{format_seconds(each.best_s)}{', extrapolated' if each.is_extrapolated else ''}",
            format_seconds(each.seconds) if each.seconds else "-",
        )  # fmt: skip
    console_of(140).print(table)


def show(
    table: TablePath = None,
    num_ranks: Annotated[
        int | None,
        optional("-n", "--num-ranks", metavar="N", help="Show only times of N ranks."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print a table: the fastest backend of each operation and size, and by how much."""
    loaded = _load(table)
    if num_ranks is not None and num_ranks not in (known := sorted({cell[2] for cell in loaded.cells})):
        numbers = ", ".join(map(str, known)) or "no"
        raise InvalidArgument(f"-n {num_ranks}: {loaded.path} has times for {numbers} ranks only")
    cells = [
        (op, dtypes, ranks, nbytes, rows)
        for (op, dtypes, ranks, busy), sizes in loaded.cells.items()
        if not busy and num_ranks in (None, ranks)
        for nbytes, rows in sizes.items()
    ]
    if as_json:
        print(
            json.dumps(
                {
                    "path": loaded.path,
                    "hash": loaded.hash,
                    "machine": loaded.machine.to_json(),
                    "cells": [
                        {
                            "op": op,
                            "dtypes": dtypes,
                            "num_ranks": ranks,
                            "nbytes": nbytes,
                            "seconds": {name: row.seconds for name, row in rows.items()},
                            "learned": [name for name, row in rows.items() if row.source == "run"],
                        }
                        for op, dtypes, ranks, nbytes, rows in cells
                    ],
                    "rules": [asdict(rule) for rule in loaded.rules if num_ranks in (None, rule.num_ranks)],
                }
            )
        )
        return 0
    names = sorted({row.backend for row in loaded.rows}, key=list(loaded.machine.backends).index)
    has_schedules = any(row.algorithm for row in loaded.rows)
    schedule_column = ("best schedule",) if has_schedules else ()
    headings = ("operation", "ranks", "size", *names, *schedule_column, "fastest by")
    title = f"{loaded.path}: {loaded.machine.processor}, {loaded.machine.num_cpus} CPUs"
    grid = table_of(title, headings, left=("operation", "best schedule"), no_wrap=True)
    grid.columns[-2].no_wrap = not has_schedules
    grid.caption = "* seen while a program ran" if any(row.source == "run" for row in loaded.rows) else None
    for op, dtypes, ranks, nbytes, rows in cells:
        ordered = sorted(rows.values(), key=lambda row: row.seconds)
        clearly_best = ordered[0] if len(ordered) > 1 and ordered[0].high < ordered[1].low else None
        times = [_time_of(rows.get(name), clearly_best) for name in names]
        if has_schedules:
            best = next((row for row in ordered if row.algorithm), None)
            times.append(f"{_time_of(best, clearly_best)} {best.carrier}" if best else "-")
        gain = f"{ordered[1].seconds / ordered[0].seconds:.2f}" if clearly_best else "not clear" if ordered[1:] else ""
        grid.add_row(op + (" (half)" if dtypes == "half" else ""), str(ranks), format_nbytes(nbytes), *times, gain)
    console_of(120).print(grid)
    for rule in loaded.rules:
        if rule.reason and num_ranks in (None, rule.num_ranks):
            size = "any size" if rule.most_nbytes == LARGEST_NBYTES else f"up to {format_nbytes(rule.most_nbytes)}"
            print(f"{rule.op} ({rule.dtypes}, {rule.num_ranks} ranks) {size}: {rule.ranking[0]}, {rule.reason}")
    return 0


def check(
    table: TablePath = None,
    points: Annotated[int, typer.Option(metavar="N", help="Number of choices to time again.")] = 5,
    seed: Annotated[
        int | None,
        optional(metavar="N", help="Seed of the draw. Default: a new one each time."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check that a table is well-formed, print its machine, and time some of its choices again.

    Each choice is timed beside every library's own algorithm and the schedules that are fast by the table or the model.
    The exit code is 1 if a choice clearly takes more than 1.2 times as long as the best of those, or if the table was
    measured on a busy machine.

    Examples:
      hocket tune check
      hocket tune check --points 20 --seed 1
      hocket tune check there.json --points 0
    """
    if points < 0:
        raise InvalidArgument(f"--points must be 0 or more, not {points}")
    loaded = _load(table)
    found: list[RecheckedPoint] = []
    if points:
        exit_code, found = _time_again(loaded, points, secrets.randbelow(1 << 31) if seed is None else seed)
        if exit_code:
            return exit_code
    exit_code = int(not loaded.is_judged or not all(point.holds for point in found))
    if as_json:
        facts = {"path": loaded.path, "rows": len(loaded.rows), "hash": loaded.hash, **loaded.machine.to_json()}
        print(json.dumps(facts | {"judged": loaded.is_judged, "points": [asdict(point) for point in found]}))
        return exit_code
    print(_description(loaded))
    if not loaded.is_judged:
        print(f"  NOISE other programs took {loaded.foreign_busy:.0%} of the CPU time while the table was measured")
    for name, description in loaded.machine.backends.items():
        print(f"  {name}: {description}")
    for point in found:
        print(
            f"  {'ok  ' if point.holds else 'SLOW'} {point.op} {point.dtypes} of {format_nbytes(point.nbytes)}: "
            f"{point.chosen} takes {point.ratio:.2f} [{point.low:.2f}, {point.high:.2f}] of the time of {point.best}, "
            f"the best of {point.num_others} others"
        )
    return exit_code


def _time_again(loaded: Table, points: int, seed: int) -> tuple[int, list[RecheckedPoint]]:
    """Run ranks that time choices of a table again; return their exit code and what they found."""
    num_ranks = max((row.num_ranks for row in loaded.rows), default=0)
    if num_ranks < 2 or loaded.machine.num_hosts > 1:
        raise InvalidArgument(f"{loaded.path} has no times of several ranks on one host to time again; use --points 0")
    with tempfile.TemporaryDirectory(prefix="hocket-check-") as folder:
        copy = Path(folder) / "table.json"
        save_table(loaded, copy)
        sweep = {"rounds": 9, "sizes": list(SIZES)}
        options = {"backends": list(loaded.machine.backends), "sweep": sweep, "points": points, "seed": seed}
        exit_code, found = result_of_ranks("_tune_rank", options | {"check": str(copy)}, num_ranks)
        return exit_code, [RecheckedPoint(**each) for each in found or ()]


def export(
    table: TablePath = None,
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="Output format, such as ompi-classic; see --formats.")
    ] = "csv",
    ranks: Annotated[str | None, optional(metavar="A,B", help="Numbers of ranks. Default: the table's.")] = None,
    formats: Annotated[bool, typer.Option("--formats", help="List the formats and the tools that read them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the text, or the formats, in a JSON object.")] = False,
) -> int:
    """Write a table to standard output: its rows as CSV, or rules for another library.

    Rules for numbers of ranks that were not measured come from the fitted links. If a format has comments, they mark
    the modelled times.

    Examples:
      hocket tune export > rows.csv
      hocket tune export --to ompi-classic --ranks 2,4,8,16 > rules.conf
      hocket tune export --to mpich-json --ranks 2,4,8,16 > choices.json
    """
    from hocket.tune.export import export_table, exporters

    if formats:
        if as_json:
            print(json.dumps({each.name: each.description for each in exporters().values()}))
            return 0
        for each in exporters().values():
            print(f"{each.name:<14}{each.description}")
        return 0
    numbers = [_read_count(each) for each in ranks.split(",")] if ranks else []
    text = export_table(_load(table), to, numbers)
    sys.stdout.write(json.dumps({"format": to, "text": text}) + "\n" if as_json else text)
    return 0


def _read_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 2:
        raise InvalidArgument(f"{text!r} is not a number of ranks, 2 or more; write a list like 4,8,64")
    return int(text)


def draw(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PICTURE", help="File to write, such as table.png or table.svg.")
    ],
    table: TablePath = None,
    as_json: AsJson = False,
) -> int:
    """Draw a table: times by size, and the choices.

    Examples:
      hocket tune draw -o table.png
      hocket tune draw there.json -o there.svg
    """
    loaded = _load(table)
    check_picture_path(output)
    draw_table(loaded, output)
    print(json.dumps({"written": str(output)}) if as_json else output)
    return 0


def _load(path: Path | None) -> Table:
    """Load the named table, by default the user's."""
    if path is None and find_table() is None:
        raise InvalidArgument(f"no table at {default_path()} yet; measure one with: hocket tune run -n 2")
    return load_table(path or default_path())


def _description(table: Table) -> str:
    ranks: Sequence[int] = sorted({row.num_ranks for row in table.rows})
    return (
        f"{table.path}: {len(table.rows)} rows, for {' and '.join(map(str, ranks))} ranks, hash {table.hash}, "
        f"of {table.machine.processor} with {table.machine.num_cpus} CPUs"
    )


def _time_of(row: TableRow | None, best: TableRow | None) -> str:
    if row is None:
        return "-"
    text = format_seconds(row.seconds) + ("*" if row.source == "run" else "")
    return f"[bold]{text}[/bold]" if row is best else text
