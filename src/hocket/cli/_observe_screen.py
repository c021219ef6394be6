"""The live view of a job in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.cli._tables import table_of
from hocket.observe.completeness import IoAccount, format_share

if TYPE_CHECKING:
    from rich.console import Group

    from hocket.observe import InFlight, IoCompleteness, JobView, RankView

_HEADINGS = (
    "rank",
    "process",
    "state",
    "CPU",
    "doing",
    "since",
    "waits for",
    "op/s",
    "comm/s",
    "in comm",
    "I/O/s",
    "I/O seen",
    "memory",
)
_LEFT = ("process", "state", "doing", "waits for")
_LEFT_OUT_FIRST = ("I/O seen", "memory", "in comm", "I/O/s", "comm/s", "process", "op/s", "CPU", "since")
_LEAST_DOING = 30
_BORDER = 3
_LONG_S = 1.0
"""An operation that takes longer stands out."""
_MOST_RANKS_NAMED = 6


def screen(view: JobView, title: str, width: int) -> Group:
    """Return one picture of a job.

    Args:
        view: the job.
        title: first line.
        width: columns of the terminal; where they are few, the least important numbers are left out.
    """
    from rich.console import Group
    from rich.text import Text

    jobs = sorted({rank.job for rank in view.ranks if rank.owner.rank is not None})
    has_several = len(jobs) > 1
    has_hosts = len({rank.owner.host for rank in view.ranks}) > 1
    more: dict[str, list[str]] = {}
    if has_several:
        more["job"] = [str(rank.job) if rank.owner.rank is not None else "-" for rank in view.ranks]
    if has_hosts:
        more["host"] = [rank.owner.host for rank in view.ranks]
    rows = [_row(rank) for rank in view.ranks]
    taken = sum(max(map(len, (name, *cells))) + _BORDER for name, cells in more.items())
    columns, room = _columns_for(rows, width - taken)
    table = table_of(title, (*more, *(_HEADINGS[each] for each in columns)), (*more, *_LEFT), no_wrap=True)
    for column in table.columns:
        if column.header == "doing":
            column.max_width = room
    for number, (rank, row) in enumerate(zip(view.ranks, rows, strict=True)):
        before = (cells[number] for cells in more.values())
        table.add_row(*before, *(row[each] for each in columns), style=_style(rank))
    notes = []
    for job in jobs:
        ranks = [rank for rank in view.ranks if rank.job == job]
        late = sorted({each for rank in ranks for each in rank.waits_for})
        if late:
            stuck = sum(bool(rank.waits_for) for rank in ranks)
            text = f"{stuck} {'rank waits' if stuck == 1 else 'ranks wait'} for {_ranks(tuple(late))}"
            where = f"job {job}: " if has_several else ""
            notes.append(Text(where + text, style="bold red" if _is_long(ranks) else ""))
    batch = {(rank.batch.system, rank.batch.job): rank.batch.nodes for rank in view.ranks if rank.batch}
    notes += [Text(f"{system} job {job} on {nodes or 'unknown hosts'}") for (system, job), nodes in batch.items()]
    notes += [Text(problem, style="yellow") for problem in view.problems]
    return Group(table, *notes)


def _columns_for(rows: list[list[str]], width: int) -> tuple[list[int], int]:
    """Return the columns that a terminal has room for, and how much of it "doing" gets, which may be cut."""
    widths = [max(len(heading), *(len(row[each]) for row in rows)) for each, heading in enumerate(_HEADINGS)]
    doing = _HEADINGS.index("doing")
    wanted, widths[doing] = widths[doing], 0
    shown = list(range(len(_HEADINGS)))
    for name in (*_LEFT_OUT_FIRST, ""):
        room = width - 1 - sum(widths[each] + _BORDER for each in shown)
        if room >= min(wanted, _LEAST_DOING) or not name:
            break
        shown.remove(_HEADINGS.index(name))
    return shown, max(min(room, wanted), len("doing"))


def _row(rank: RankView) -> list[str]:
    owner, status, doing = rank.owner, rank.status, rank.doing
    return [
        "-" if owner.rank is None else str(owner.rank),
        str(owner.pid),
        _state(rank),
        f"{rank.cpu:.0%}" if status else "",
        _doing(rank),
        _seconds(doing.since_s) if doing else _seconds(rank.activity.idle_s),
        _ranks(rank.waits_for),
        _count(rank.operations_per_s),
        format_bytes(rank.communicated_per_s),
        f"{min(rank.communicating, 1):.0%}",
        format_bytes(rank.io_per_s),
        format_seen(rank.io),
        format_bytes(status.resident_nbytes) if status else "",
    ]


def _state(rank: RankView) -> str:
    if rank.status:
        return rank.status.state
    return "ended" if rank.owner.has_ended else "was killed"


def _doing(rank: RankView) -> str:
    if rank.doing:
        return describe(rank.doing)
    return "no operation" if rank.status else ""


def describe(doing: InFlight) -> str:
    """Return an operation in flight in a few words."""
    if doing.ring == "program":
        return f"region {doing.name}"
    size = f" {format_bytes(doing.nbytes)}" if doing.nbytes else ""
    if doing.ring == "process":
        return f"control: {doing.name}{size}"
    if doing.ring == "io":
        return f"{doing.name}{size} {doing.target}"
    peer = "" if doing.peer is None else f" with rank {doing.peer}"
    return f"{doing.name}{size}{peer} on {doing.target}, number {doing.number}"


def _style(rank: RankView) -> str:
    if rank.status is None or rank.status.state.startswith("stopped"):
        return "red"
    doing = rank.doing
    return "yellow" if doing and doing.ring != "program" and doing.since_s > _LONG_S else ""


def _is_long(ranks: list[RankView]) -> bool:
    return any(rank.waits_for and rank.doing and rank.doing.since_s > _LONG_S for rank in ranks)


def _ranks(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return ""
    rest = f" and {len(ranks) - _MOST_RANKS_NAMED} more" if len(ranks) > _MOST_RANKS_NAMED else ""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks[:_MOST_RANKS_NAMED])) + rest


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return (
        f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    )


def _count(value: float) -> str:
    return f"{value:.0f}" if value < 10_000 else f"{value / 1e3:.0f}k" if value < 1e7 else f"{value / 1e6:.0f}M"


def format_seen(io: IoCompleteness) -> str:
    """Return the seen share of reads and writes together, never rounded up to 1; "-" if it is unavailable."""
    if io.read is None or io.written is None:
        return "-"
    whole = IoAccount(*(a + b for a, b in zip(_numbers(io.read), _numbers(io.written), strict=True)))
    return format_share(whole.share)


def _numbers(account: IoAccount) -> tuple[int, int, int]:
    return account.recorded_nbytes, account.other_nbytes, account.kernel_nbytes


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes with two or three digits and a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 10 else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
