"""A recorded run as one HTML file: the findings, pictures and tables, with nothing to load from elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.comm.policy import format_nbytes, format_seconds
from hocket.errors import InvalidArgument
from hocket.observe.analysis.breakdown import breakdown
from hocket.observe.analysis.connections import connections_of
from hocket.observe.analysis.conservation import conservation
from hocket.observe.analysis.efficiency import efficiencies
from hocket.observe.analysis.findings import findings_in
from hocket.observe.analysis.links import link_loads
from hocket.observe.analysis.matrix import communication_matrix
from hocket.observe.analysis.operations import operations_of
from hocket.observe.analysis.totals import totals_of
from hocket.observe.analysis.waits import wait_states
from hocket.observe.completeness import format_share, total_of
from hocket.observe.jobs import ranks_of_jobs
from hocket.observe.report import pictures
from hocket.observe.report.files import busiest_files
from hocket.observe.report.shares import name_of_process, time_shares
from hocket.whole_file import check_output, write_text

if TYPE_CHECKING:
    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.analysis.waits import WaitStates
    from hocket.observe.saved import ObservedRun

_MOST_PROCESSES = 64
_MOST_ROWS = 30
_UPPER_BOUND = (
    " It is not known how long the program waited for asynchronous operations: this is the most that it can be."
)
_STYLE = """
:root { color-scheme: light dark; --line: #d8d5cc; --quiet: #6b6b6b; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.quiet, td.quiet { color: var(--quiet); }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; margin: 0.8rem 0; }
th, td { text-align: left; padding: 0.25rem 0.7rem 0.25rem 0; border-bottom: 1px solid var(--line); }
td { vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.picture { background: white; border-radius: 4px; } .picture svg { max-width: 100%; height: auto; }
.scroll { overflow-x: auto; } code { font-size: 0.9em; overflow-wrap: anywhere; }
.certain { border-left: 3px solid #d1495b; padding-left: 0.7rem; }
"""


def write_report(run: ObservedRun, path: str | Path) -> None:
    """Write one HTML file about a run: its findings, what each process did, communication, network, files and losses.

    The file needs no network and no other file. Pictures need matplotlib (``pip install 'hocket[plot]'``).

    Args:
        run: from `open_run`.
        path: of the file, which must end in .html.

    Raises:
        InvalidArgument: it has another ending, or nothing can be written there.
        BackendUnavailable: matplotlib is not installed.

    Examples:
        >>> from pathlib import Path
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-to-report")
        >>> observe.write_report(observe.open_run("run-to-report"), "report.html")
        >>> "cat /etc/hostname" in Path("report.html").read_text()
        True
    """
    target = Path(path)
    check_report_path(target)
    write_text(target, "".join(_page(run)))


def check_report_path(path: Path) -> None:
    """Check that a report can be written there.

    Raises:
        InvalidArgument: it does not end in .html, or nothing can be written there.
    """
    if path.suffix != ".html":
        raise InvalidArgument(f"{path} must end in .html")
    check_output(path)


def _page(run: ObservedRun) -> Iterator[str]:
    operations = operations_of(run)
    waits = wait_states(run, operations)
    command = shlex.join(run.description.command)
    yield f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(command)}</title>\n'
    yield f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n'
    yield f"<h1><code>{escape(command)}</code></h1>\n"
    yield from _head(run)
    yield from _findings(run, operations, waits)
    yield from _timeline(run, operations, waits)
    yield from _waits(run, waits)
    yield from _breakdown(run)
    yield from _matrix(run)
    yield from _network(run)
    yield from _files(run)
    yield from _hosts(run)
    yield from _losses(run)
    yield "</html>\n"


def _head(run: ObservedRun) -> Iterator[str]:
    about = run.description
    hosts = sorted({each.host for each in (about, *run.other_hosts)})
    ranks = len(ranks_of_jobs(run.processes))
    began = datetime.fromtimestamp(about.began_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    num_events = sum(len(events) for process in run.processes for events in process.events.values())
    lost = sum(sum(process.lost.values()) for process in run.processes)
    parts = [
        f"{began}, {format_seconds(about.ended_s - about.began_s)}, exit code {about.exit_code}",
        f"{_count(len(run.processes), 'process', 'processes')}, {_count(ranks, 'rank')}",
        f"{_count(len(hosts), 'host')}: {', '.join(hosts)}",
        f"{num_events} events, {f'{lost} more were lost' if lost else 'none lost'}",
    ]
    yield f'<p class="quiet">{escape("; ".join(parts))}</p>\n'


def _findings(run: ObservedRun, operations: RunOperations, waits: WaitStates) -> Iterator[str]:
    found = findings_in(run, operations, waits)
    yield "<h2>What cost the time</h2>\n"
    if not found:
        yield "<p>No findings: no rank kept the others waiting beyond chance, nothing hung, no device was full.</p>\n"
    for each in found:
        doubt = "" if each.is_certain else " (events were lost)"
        kind = f"<b>{format_seconds(each.seconds)}, {escape(each.kind)}</b>"
        yield f'<p class="certain">{kind}: {escape(each.text)}{doubt}</p>\n'
    for job in efficiencies(operations, waits):
        yield (
            f"<p>{_count(job.num_ranks, 'rank')} in {format_seconds(job.runtime_s)}: parallel efficiency "
            f"{job.parallel:.2f} = load balance {job.load_balance:.2f} x communication {job.communication:.2f}; waits "
            f"for late ranks {job.wait_share:.0%}, the rest of communication {job.transfer_share:.0%}."
            f"{_UPPER_BOUND if job.is_upper_bound else ''}</p>\n"
        )


def _timeline(run: ObservedRun, operations: RunOperations, waits: WaitStates) -> Iterator[str]:
    places = _shown_processes(run)
    if not places:
        return
    yield "<h2>What each process did</h2>\n"
    yield _picture(pictures.timeline(time_shares(run, operations, waits, places)))
    left_out = len(run.processes) - len(places)
    others = f" {_count(left_out, 'other process', 'other processes')}: not shown." if left_out else ""
    yield f'<p class="quiet">A point has the mean color of its time, so short operations tint it.{others}</p>\n'


def _shown_processes(run: ObservedRun) -> list[int]:
    """The first ranks, or else the first processes."""
    ranks = [*ranks_of_jobs(run.processes).values()]
    return (ranks or [*range(len(run.processes))])[:_MOST_PROCESSES]


def _waits(run: ObservedRun, waits: WaitStates) -> Iterator[str]:
    if not len(waits.rows) or not waits.rows["wait"].sum():
        return
    yield "<h2>Who waited, and for whom</h2>\n"
    yield _picture(pictures.waits(waits, [name_of_process(run, place) for place in range(len(run.processes))]))
    yield '<p class="quiet">Directly: the findings trace waits back to the rank that caused them.</p>\n'


def _breakdown(run: ObservedRun) -> Iterator[str]:
    rows = breakdown(totals_of(run))
    if not rows:
        return
    yield "<h2>Where the time of communication went</h2>\n"
    headings = ("operation", "sizes", "library", "algorithm", "#ranks", "#count", "#bytes", "#seconds", "#median",
                "#p99", "#bus/s")  # fmt: skip
    yield _table(
        headings,
        (
            (
                row.op, f"{format_nbytes(row.least_nbytes)} to {format_nbytes(row.most_nbytes + 1)}", row.library,
                row.algorithm or "-", str(row.num_ranks or "-"), str(row.count), format_nbytes(row.nbytes),
                format_seconds(row.seconds), format_seconds(row.median_s), format_seconds(row.p99_s),
                "-" if row.bus_bandwidth is None else format_nbytes(round(row.bus_bandwidth)),
            )
            for row in rows
        ),
    )  # fmt: skip
    yield '<p class="quiet">Exact, also where single events were lost; all ranks together.</p>\n'


def _matrix(run: ObservedRun) -> Iterator[str]:
    found = communication_matrix(totals_of(run))
    for cells, words in (
        (found.sent_nbytes, "Bytes between ranks, in messages that were recorded"),
        (found.modelled_nbytes, "Bytes between ranks of collectives, modelled: their messages are not known"),
    ):
        if cells.sum():
            yield f"<h2>{words}</h2>\n"
            yield _picture(pictures.matrix(cells))


def _network(run: ObservedRun) -> Iterator[str]:
    links = [link for link in link_loads(run) if link.sent_nbytes > 0]
    picture = pictures.network(run)
    if picture is None:
        return
    yield "<h2>Network</h2>\n"
    yield _picture(picture)
    headings = ("host", "device", "#sent", "#of ranks", "#to others", "#other programs", "#unexplained",
                "#was the limit")  # fmt: skip
    yield _table(
        headings,
        (
            (link.host, link.device, *(_nbytes(value) for value in (
                link.sent_nbytes, link.rank_nbytes, link.other_nbytes, link.foreign_nbytes, link.residual_nbytes,
            )), format_seconds(link.limited_s) if link.limited_s else "-")
            for link in links
        ),
    )  # fmt: skip
    connections = [each for each in connections_of(run) if each.process is not None and each.sent_nbytes]
    yield _table(
        ("from", "to", "device", "#sent", "#busy", "#receiver", "#own buffer", "#network", "limited by"),
        (
            (
                _end(run, each.process, each.local), _end(run, each.peer, each.remote), each.device,
                _nbytes(each.sent_nbytes), *(format_seconds(value) if value > 0 else "-" for value in (
                    each.busy_s, each.receiver_limited_s, each.buffer_limited_s, each.network_limited_s,
                )), each.limited_by or "-",
            )
            for each in connections
        ),
    )  # fmt: skip
    unexplained = [row for row in conservation(run) if not row.is_explained]
    for row in unexplained:
        yield f'<p class="quiet">{escape(row.what)}, {row.edge}: {row.residual:+.0%} bytes are not explained.</p>\n'


def _end(run: ObservedRun, place: int | None, address: str) -> str:
    return address if place is None else name_of_process(run, place)


def _files(run: ObservedRun) -> Iterator[str]:
    rows = busiest_files(run)
    if not rows:
        return
    yield "<h2>Files that took the most time</h2>\n"
    headings = ("file", "#processes", "#calls", "#read", "#written", "#seconds")
    yield _table(
        headings,
        (
            (each.name, str(each.num_processes), str(each.num_calls), _nbytes(each.read_nbytes),
             _nbytes(each.written_nbytes), format_seconds(each.seconds))
            for each in rows
        ),
    )  # fmt: skip


def _hosts(run: ObservedRun) -> Iterator[str]:
    picture = pictures.processors(run)
    if picture is not None:
        yield "<h2>Processors in use, by all programs of the host</h2>\n"
        yield _picture(picture)


def _losses(run: ObservedRun) -> Iterator[str]:
    yield "<h2>What was not seen</h2>\n"
    io = total_of((name_of_process(run, place), process.io) for place, process in enumerate(run.processes))
    for word, account in (("reads", io.total.read), ("writes", io.total.written)):
        if account is not None and account.share is not None:
            yield f"<p>Of the bytes of all {word}, {format_share(account.share)} were seen.</p>\n"
    for place, process in enumerate(run.processes):
        for ring, count in process.lost.items():
            yield f"<p>{escape(name_of_process(run, place))}: {count} events of {ring} were overwritten.</p>\n"
    for problem in (*run.problems, *(each for process in run.processes for each in process.problems)):
        yield f"<p>{escape(problem)}</p>\n"


def _picture(svg: str) -> str:
    return f'<div class="picture">{svg}</div>\n'


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts; headings that begin with # are of numbers."""
    classes = [' class="number"' if heading.startswith("#") else "" for heading in headings]
    shown = list(rows)
    lines = [
        "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(classes, row, strict=True))
        for row in shown[:_MOST_ROWS]
    ]
    head = "".join(f"<th{kind}>{escape(name.lstrip('#'))}</th>" for kind, name in zip(classes, headings, strict=True))
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    more = f'<p class="quiet">{len(shown) - _MOST_ROWS} more rows</p>\n' if len(shown) > _MOST_ROWS else ""
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}</table></div>\n{more}'


def _nbytes(value: float) -> str:
    return format_nbytes(round(value)) if value > 0 else "-"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
