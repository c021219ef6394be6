"""Draw a table: the time of each operation by size, one line per backend, and the backend chosen at each size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hocket.comm.policy import Group, format_nbytes, format_seconds, split_carrier
from hocket.measure.pictures import COLORS, load_pyplot
from hocket.tune.policy import TablePolicy
from hocket.tune.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3


def draw_table(table: Table, path: str | Path) -> None:
    """Draw all operations that were measured alone, each for its largest number of ranks.

    Args:
        table: the table to draw.
        path: path of the picture; its suffix selects the format.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    plt = load_pyplot()
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter

    panels: dict[tuple[str, str], int] = {}
    for op, dtypes, num_ranks, busy in table.cells:
        if not busy and op != "barrier":
            panels[op, dtypes] = max(num_ranks, panels.get((op, dtypes), 0))
    num_rows = -(-len(panels) // _COLUMNS)
    figure, grid = plt.subplots(
        num_rows, _COLUMNS, figsize=(4 * _COLUMNS, 2.7 * num_rows + 0.8), layout="constrained", squeeze=False
    )
    names = list(table.machine.backends)
    for axes, ((op, dtypes), num_ranks) in zip(grid.flat, sorted(panels.items()), strict=False):
        _draw_panel(axes, table, op, dtypes, num_ranks, names)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_nbytes(int(value))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    hosts = "" if table.machine.num_hosts == 1 else f", {table.machine.num_hosts} hosts"
    figure.suptitle(
        f"{table.machine.processor}, {table.machine.num_cpus} CPUs{hosts}: time of an operation by size "
        "(band: 95 % interval; dashed: the best schedule over the backend; strip below: the chosen backend)",
        fontsize=10,
    )
    handles = [Line2D([], [], color=_color(names, name), label=name) for name in names]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_panel(axes: Axes, table: Table, op: str, dtypes: str, num_ranks: int, names: list[str]) -> None:
    sizes = table.cells[op, dtypes, num_ranks, False]
    for name in names:
        rows = [rows[name] for rows in sizes.values() if name in rows]
        if not rows:
            continue
        nbytes = [row.nbytes for row in rows]
        axes.plot(nbytes, [row.seconds for row in rows], ".-", color=_color(names, name), linewidth=1.3)
        axes.fill_between(
            nbytes, [row.low for row in rows], [row.high for row in rows], color=_color(names, name), alpha=0.2
        )
        by_schedules = (
            [row for row in rows.values() if row.backend == name and row.algorithm] for rows in sizes.values()
        )
        best = [min(rows, key=lambda row: row.seconds) for rows in by_schedules if rows]
        places = [row.nbytes for row in best], [row.seconds for row in best]
        axes.plot(*places, "x--", color=_color(names, name), linewidth=0.9, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ranges = TablePolicy(table).choices(Group(num_ranks, names, table.machine.num_hosts))[op, dtypes]
    begin = float(min(sizes))
    for each in ranges:
        end = float(min(each.most_nbytes, max(sizes)))
        if end > begin:
            axes.axvspan(begin, end, ymax=0.03, color=_color(names, split_carrier(each.ranking[0])[0]), linewidth=0)
        begin = max(begin, end)
    axes.set_xticks([size for size in (16, 1 << 10, 64 << 10, 1 << 20, 16 << 20) if min(sizes) <= size <= max(sizes)])
    axes.set_title(f"{op}{' of 16-bit floats' if dtypes == 'half' else ''}, {num_ranks} ranks", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _color(names: list[str], name: str) -> str:
    return COLORS[names.index(name) % len(COLORS)]
