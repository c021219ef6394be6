"""Verbs of `hocket observe` that show what recorded runs contain: `findings`, `breakdown`, `network` and others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli._observe_fabric import FABRIC_EXAMPLES, FABRIC_HELP, fabric
from hocket.cli._observe_import import IMPORT_EXAMPLES, IMPORT_HELP, import_files
from hocket.cli._observe_network import print_network
from hocket.cli._observe_primitives import PRIMITIVES_EXAMPLES, PRIMITIVES_HELP, primitives
from hocket.cli._observe_store import PUSH_EXAMPLES, PUSH_HELP, SERVE_EXAMPLES, SERVE_HELP, push, serve
from hocket.cli._output import AsJson, json_text
from hocket.cli._termination import cleaned_up_when_terminated
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.observe import BreakdownRow, CommunicationMatrix, ObservedRun
    from hocket.observe.analysis.unfinished import UnfinishedOperation

_FINDINGS_HELP = """Say what cost a recorded run the most time: which rank, why, and how many seconds.

Named are ranks that the others waited for, with what they did meanwhile; collectives that never completed, with the
ranks that were missing; ranks that died; network devices that were the limit; and load of other programs. Seconds are
those of all ranks together. A run without findings prints so. Of a run that goes on, operations that have been under
way for a second or more come first, with the ranks that have not begun them."""
_FINDINGS_EXAMPLES = """\b
Examples:
  hocket observe findings hocket-run-20261128-150000
  hocket observe findings run-1 --json
  hocket observe findings run-1 --fail        exit code 1 if there is a finding, for scripts"""
_MOST_UNDER_WAY = 20
_BREAKDOWN_HELP = """Show where the time and bytes of communication went: by operation, size, algorithm and library.

The numbers are exact, also where events were left out or lost."""
_BREAKDOWN_EXAMPLES = """\b
Examples:
  hocket observe breakdown run-1
  hocket observe breakdown run-1 --json"""
_MATRIX_HELP = """Show how many bytes each rank sent to each other one.

Messages of the program and of schedules were recorded one by one. For collectives that a library carries out by an
algorithm of its own there are no messages: --modelled shows what a ring or a tree would send for them."""
_MATRIX_EXAMPLES = """\b
Examples:
  hocket observe matrix run-1
  hocket observe matrix run-1 --modelled --draw matrix.png
  hocket observe matrix run-1 --json"""
_NETWORK_HELP = """Show what the network devices of a run's hosts carried, whose bytes, and who limited the connections.

Of each connection the kernel counts for how long it had data to send, and whether the receiver, the sender's buffer or
the network kept it from sending. Bytes of a device that no connection explains were of other hosts or programs."""
_NETWORK_EXAMPLES = """\b
Examples:
  hocket observe network run-1
  hocket observe network run-1 --json"""
_DIFF_HELP = """Compare two recorded runs: which operations and regions became slower, beyond their own spread.

An interval that contains 1 is no difference. Times of two runs can be compared only on the same machine in the same
state: load of other programs is shown for both."""
_DIFF_EXAMPLES = """\b
Examples:
  hocket observe diff last-week today
  hocket observe diff last-week today --fail-on 5%      exit code 1 if something is 5 % slower, for CI
  hocket observe diff last-week today --json"""
_EXPORT_HELP = """Write a recorded run as a file of another tool, by the ending of its name.

.json, .json.gz, .pftrace and .pftrace.gz are a timeline for https://ui.perfetto.dev: regions, operations, transfers and
I/O of all processes, arrows from sends to receives, CPU and memory. .flight is a folder for torchfrtrace, .kineto one
for HolisticTraceAnalysis, .inspector one of NCCL's Inspector. .prom and .inspector.prom are metrics for Prometheus,
with hocket's names and with those of the Inspector. .parquet is a folder of tables, for pandas and others, and for
`hocket observe query`. .otlp.jsonl and .otlp.jsonl.gz are spans of OpenTelemetry."""
_EXPORT_EXAMPLES = """\b
Examples:
  hocket observe export run-1 run-1.json.gz
  hocket observe export run-1 run-1.flight && torchfrtrace run-1.flight"""
_REPORT_HELP = """Write a recorded run as one HTML file, to read and to pass on: the page of `hocket observe serve`,
with what its views show of the whole run. The file needs nothing else (pip install 'hocket[store]' to write it)."""
_REPORT_EXAMPLES = """\b
Examples:
  hocket observe report run-1
  hocket observe report run-1 slow-training.html"""
_QUERY_HELP = """Ask a recorded run in SQL (of DuckDB: pip install 'hocket[sql]').

Tables: processes, communicators, operations, waits, totals, transfers, io, dask, regions, samples, host_samples,
connections, links, findings, problems. DESCRIBE TABLE shows the columns of one. Times are seconds since the run began.
A query can read these tables and nothing else. RUN may be a store of many runs, with --run: a folder, or a database of
ClickHouse, which takes its own SQL and only SELECT."""
_QUERY_EXAMPLES = """\b
Examples:
  hocket observe query run-1 "SELECT op, library, count(*), sum(seconds) FROM operations GROUP BY ALL"
  hocket observe query run-1 "SELECT file, sum(nbytes) AS n FROM io GROUP BY file ORDER BY n DESC LIMIT 10"
  hocket observe query run-1 "DESCRIBE waits" --json
  hocket observe export run-1 run-1.parquet && hocket observe query run-1.parquet "SELECT * FROM findings"
  hocket observe query store --run run-1 "SELECT op, count(*) FROM operations GROUP BY op"
  hocket observe query clickhouse://me@db:8123/runs --run run-1 "SELECT count(*) FROM io\""""
_MOST_SHOWN_ROWS = 1000
_MOST_SHOWN_RANKS = 16
_LEAST_SHARE = 0.01
"""Of the time of the second run; what takes less fails no comparison."""

_Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that `hocket observe run` has saved.")]


def register(verbs: typer.Typer) -> None:
    """Add the verbs to `hocket observe`."""
    verbs.command("findings", help=_FINDINGS_HELP, epilog=_FINDINGS_EXAMPLES)(findings)
    verbs.command("breakdown", help=_BREAKDOWN_HELP, epilog=_BREAKDOWN_EXAMPLES)(breakdown)
    verbs.command("primitives", help=PRIMITIVES_HELP, epilog=PRIMITIVES_EXAMPLES)(primitives)
    verbs.command("matrix", help=_MATRIX_HELP, epilog=_MATRIX_EXAMPLES)(matrix)
    verbs.command("network", help=_NETWORK_HELP, epilog=_NETWORK_EXAMPLES)(network)
    verbs.command("diff", help=_DIFF_HELP, epilog=_DIFF_EXAMPLES)(diff)
    verbs.command("query", help=_QUERY_HELP, epilog=_QUERY_EXAMPLES)(query)
    verbs.command("report", help=_REPORT_HELP, epilog=_REPORT_EXAMPLES)(report)
    verbs.command("export", help=_EXPORT_HELP, epilog=_EXPORT_EXAMPLES)(export)
    verbs.command("fabric", help=FABRIC_HELP, epilog=FABRIC_EXAMPLES)(fabric)
    verbs.command("serve", help=SERVE_HELP, epilog=SERVE_EXAMPLES)(serve)
    verbs.command("push", help=PUSH_HELP, epilog=PUSH_EXAMPLES)(push)
    verbs.command("import", help=IMPORT_HELP, epilog=IMPORT_EXAMPLES)(import_files)


def findings(
    run: _Run,
    fails: Annotated[bool, typer.Option("--fail", help="Exit with 1 if there is a finding or a missing rank.")] = False,
    as_json: AsJson = False,
) -> int:
    """Print the findings of a run."""
    from hocket.comm.policy import format_seconds
    from hocket.observe import efficiencies, operations_of, wait_states
    from hocket.observe.analysis.findings import findings_in
    from hocket.observe.store.followed_run import under_way

    observed = _open(run)
    pending = under_way(run)
    operations = operations_of(observed)
    waits = wait_states(observed, operations)
    found, jobs = findings_in(observed, operations, waits), efficiencies(operations, waits)
    if as_json:
        shown = [{**asdict(each), **_process(observed, each.process)} for each in found]
        print(
            json_text(
                {"run": str(run), "findings": shown, "efficiency": [asdict(each) for each in jobs],
                 "under_way": [asdict(each) for each in pending]}
            )
        )  # fmt: skip
    else:
        _print_under_way(pending)
    if not as_json and not found and not pending:
        print(f"{run}: no findings")
    for each in () if as_json else found:
        doubt = "" if each.is_certain else " (events were lost)"
        print(f"{format_seconds(each.seconds):>8}  {each.kind}: {each.text}{doubt}")
    for job in () if as_json else jobs:
        parts = f"load balance {job.load_balance:.2f} x communication {job.communication:.2f}"
        time = format_seconds(job.runtime_s)
        most, least = ("at most ", "at least ") if job.is_upper_bound else ("", "")
        lost = f"waits for late ranks {least}{job.wait_share:.0%}, the rest of communication {job.transfer_share:.0%}"
        print(f"{job.num_ranks} ranks, {time}: parallel efficiency {most}{job.parallel:.2f} = {parts}; {lost}")
        if job.is_upper_bound:
            print("how long the program waited for asynchronous operations is not known; stragglers count all of it")
    return 1 if fails and (found or any(each.missing for each in pending)) else 0


def _print_under_way(pending: Sequence[UnfinishedOperation]) -> None:
    from hocket.comm.policy import format_seconds
    from hocket.observe.analysis.unfinished import describe_unfinished

    for each in pending[:_MOST_UNDER_WAY]:
        print(f"{format_seconds(each.seconds):>8}  under way: {describe_unfinished(each)}")
    if len(pending) > _MOST_UNDER_WAY:
        print(f"{len(pending) - _MOST_UNDER_WAY} more operations are under way; --json has all")


def breakdown(run: _Run, as_json: AsJson = False) -> int:
    """Print the totals of a run's operations."""
    from hocket.cli._tables import console_of, table_of
    from hocket.comm.policy import format_nbytes, format_seconds
    from hocket.observe import breakdown as breakdown_of
    from hocket.observe import totals_of

    rows = breakdown_of(totals_of(_open(run)))
    if as_json:
        print(json_text({"run": str(run), "rows": [asdict(row) for row in rows]}))
        return 0
    headings = ("operation", "sizes", "library", "ranks", "count", "bytes", "seconds", "median", "p99", "bus/s")
    table = table_of(f"{run}: all ranks together", headings, ("operation", "library"))
    for row in rows:
        table.add_row(
            row.op, _sizes(row), f"{row.library} {row.algorithm}".strip(), str(row.num_ranks or "-"),
            f"{row.count}{f' ({row.failed} failed)' if row.failed else ''}", format_nbytes(row.nbytes),
            format_seconds(row.seconds), format_seconds(row.median_s), format_seconds(row.p99_s),
            "-" if row.bus_bandwidth is None else format_nbytes(round(row.bus_bandwidth)),
        )  # fmt: skip
    console_of(140).print(table)
    return 0


def matrix(
    run: _Run,
    job: Annotated[
        int | None, typer.Option("--job", help="Number of the job; by default the one with most ranks.")
    ] = None,
    modelled: Annotated[bool, typer.Option("--modelled", help="Show bytes of collectives by a model.")] = False,
    draw: Annotated[
        Path | None, typer.Option("--draw", metavar="PICTURE", help="Draw it, for example into a PNG.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the bytes between the ranks of a run."""
    from hocket.measure.pictures import check_picture_path
    from hocket.observe import communication_matrix, totals_of

    if draw is not None:
        check_picture_path(draw)
    found = communication_matrix(totals_of(_open(run)), job)
    if as_json:
        arrays = {name: getattr(found, name).tolist() for name in ("sent_nbytes", "num_messages", "modelled_nbytes")}
        print(json_text({"run": str(run), "job": found.job, **arrays, "unknown_nbytes": found.unknown_nbytes}))
    else:
        _print_matrix(run, found, modelled)
    if draw is not None:
        from hocket.cli._observe_pictures import draw_matrix

        draw_matrix(found.modelled_nbytes if modelled else found.sent_nbytes, _title(run, modelled), draw)
    return 0


def network(run: _Run, as_json: AsJson = False) -> int:
    """Print the links and connections of a run."""
    from hocket.observe import connections_of, link_loads

    observed = _open(run)
    links = link_loads(observed)
    connections = [each for each in connections_of(observed) if each.process is not None]
    if as_json:
        ends = [{**asdict(each), "limited_by": each.limited_by, **_process(observed, each.process),
                 "peer": _process(observed, each.peer)["process"]} for each in connections]  # fmt: skip
        devices = [{**asdict(each), "residual_nbytes": each.residual_nbytes} for each in links]
        print(json_text({"run": str(run), "links": devices, "connections": ends}))
    else:
        print_network(str(run), observed, links, connections)
    return 0


def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Folder of the run to compare with.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Folder of the other run.")],
    fail_on: Annotated[
        str | None,
        typer.Option("--fail-on", metavar="PERCENT", help="Exit with 1 if something is slower by more, such as 5%."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print what changed between two runs."""
    from hocket.cli._tables import console_of, table_of
    from hocket.comm.policy import format_seconds
    from hocket.observe import compare_runs, foreign_loads

    most = None if fail_on is None else 1 + _parse_percent(fail_on) / 100
    runs = _open(before), _open(after)
    rows = compare_runs(*runs)
    slower = [row.what for row in rows if most and row.share >= _LEAST_SHARE and row.low is not None and row.low > most]
    loads = [{load.host: load.share for load in foreign_loads(run)} for run in runs]
    if as_json:
        shown = [{**asdict(row), "verdict": row.verdict} for row in rows]
        print(
            json_text(
                {"before": str(before), "after": str(after), "rows": shown, "slower": slower, "foreign_load": loads}
            )
        )
        return 1 if slower else 0
    headings = ("what", "before", "after", "after / before", "interval", "share", "verdict")
    table = table_of(f"{before} and {after}: medians", headings, ("what", "verdict"))
    for row in rows:
        interval = "-" if row.low is None else f"{row.low:.3f} to {row.high:.3f}"
        table.add_row(row.what, format_seconds(row.before_s), format_seconds(row.after_s), f"{row.ratio:.3f}", interval,
                      f"{row.share:.1%}", row.verdict)  # fmt: skip
    console_of(160).print(table)
    for run, load in zip((before, after), loads, strict=True):
        shares = ", ".join(f"{share:.0%} of {host}" for host, share in load.items())
        print(f"{run}: other programs used {shares or 'an unknown share of the processors'}")
    for what in slower:
        print(f"slower by more than {fail_on}: {what}", file=sys.stderr)
    return 1 if slower else 0


def query(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of a run or of a store, or the address of one in ClickHouse.")
    ],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One query.")],
    name: Annotated[str, typer.Option("--run", help="Of the run, if RUN is a store.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", min=0.01, max=86_400, help="Seconds that it may take.")] = 30.0,
    as_json: AsJson = False,
) -> int:
    """Print the answer of a query."""
    from hocket.cli._observe_store import shown_place
    from hocket.cli._tables import console_of, table_of
    from hocket.observe import query_run, query_stored, query_tables
    from hocket.observe.store.clickhouse.address import is_clickhouse
    from hocket.observe.store.parquet import TABLES_FILE
    from hocket.observe.store.segments import STORE_FILE

    folder = Path(run)
    if name or is_clickhouse(run) or (folder / STORE_FILE).exists():
        result = query_stored(run, name, sql, timeout=timeout)
    elif (folder / TABLES_FILE).exists():
        result = query_tables(folder, sql, timeout=timeout)
    else:
        result = query_run(_open(folder), sql, timeout=timeout)
    if as_json:
        print(json_text({"run": shown_place(run), "columns": result.columns, "rows": result.rows}))
        return 0
    table = table_of("", result.columns, result.columns)
    for row in result.rows[:_MOST_SHOWN_ROWS]:
        table.add_row(*("" if value is None else str(value) for value in row))
    console_of(160).print(table)
    if len(result.rows) > _MOST_SHOWN_ROWS:
        print(f"{len(result.rows)} rows; the first {_MOST_SHOWN_ROWS} are shown, --json has all")
    return 0


def report(
    run: _Run,
    target: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to write; by default the name of the run and .html.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write a run as one HTML file."""
    from hocket.observe import write_report
    from hocket.observe.serve.report import check_report_path

    path = Path(f"{run.resolve().name}.html") if target is None else target
    check_report_path(path)
    with cleaned_up_when_terminated():
        write_report(_open(run), path)
    nbytes = path.stat().st_size
    print(json_text({"file": str(path), "nbytes": nbytes}) if as_json else f"{path}: {nbytes} bytes")
    return 0


def export(
    run: _Run,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write; its ending selects the format.")],
    as_json: AsJson = False,
) -> int:
    """Write a run for another tool."""
    from hocket.observe import export_run
    from hocket.observe.formats.export import format_of

    format_of(target)
    export_run(_open(run), target)
    nbytes = sum(each.stat().st_size for each in target.iterdir()) if target.is_dir() else target.stat().st_size
    print(json_text({"file": str(target), "nbytes": nbytes}) if as_json else f"{target}: {nbytes} bytes")
    return 0


def _parse_percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1000:
        raise InvalidArgument(f"--fail-on must be percent from 0 to 1000, such as 5%, not {text!r}")
    return value


def _open(run: Path) -> ObservedRun:
    from hocket.observe import open_run
    from hocket.observe.store.clickhouse.address import WANTED, is_clickhouse
    from hocket.observe.store.segments import STORE_FILE

    if is_clickhouse(str(run)):
        raise InvalidArgument(f"a database of ClickHouse is a store: hocket observe query {WANTED} --run NAME asks it")
    if (run / STORE_FILE).exists():
        raise InvalidArgument(f"{run} is a store: hocket observe query {run} --run NAME asks one of its runs")
    observed = open_run(run)
    for problem in (*observed.problems, *(problem for each in observed.processes for problem in each.problems)):
        print(f"hocket observe: {problem}", file=sys.stderr)
    return observed


def _process(run: ObservedRun, place: int | None) -> dict[str, Any]:
    if place is None:
        return {"process": None}
    process = run.processes[place]
    owner = process.snapshot.owner
    return {"process": {"rank": owner.rank, "pid": owner.pid, "host": process.host, "program": owner.program}}


def _sizes(row: BreakdownRow) -> str:
    from hocket.comm.policy import format_nbytes

    return (
        "0 B" if not row.most_nbytes else f"{format_nbytes(row.least_nbytes)} to {format_nbytes(row.most_nbytes + 1)}"
    )


def _title(run: Path, modelled: bool) -> str:
    return f"{run.name}: {'modelled bytes of collectives' if modelled else 'bytes of messages'}"


def _print_matrix(run: Path, found: CommunicationMatrix, modelled: bool) -> None:
    from hocket.cli._tables import console_of, table_of
    from hocket.comm.policy import format_nbytes

    cells = found.modelled_nbytes if modelled else found.sent_nbytes
    shown = min(len(cells), _MOST_SHOWN_RANKS)
    table = table_of(_title(run, modelled), ("from, to", *map(str, range(shown))), ())
    for rank in range(shown):
        table.add_row(str(rank), *(format_nbytes(round(cell)) if cell else "-" for cell in cells[rank, :shown]))
    if shown:
        console_of(160).print(table)
    if shown < len(cells):
        print(f"{len(cells)} ranks; the first {shown} are shown, --json and --draw have all")
    other = found.sent_nbytes if modelled else found.modelled_nbytes
    if other.sum():
        more = "in messages" if modelled else "in collectives whose messages are not known: see --modelled"
        print(f"{format_nbytes(round(float(other.sum())))} more {more}")
    if not cells.sum() and not other.sum():
        print(f"{run}: no bytes between ranks")
    if found.unknown_nbytes:
        print(f"{format_nbytes(found.unknown_nbytes)} went to ranks that are not known")
