"""The pictures of a report, as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hocket.comm.policy import format_nbytes
from hocket.measure.pictures import COLORS, load_pyplot
from hocket.observe.analysis.links import count_steps
from hocket.observe.report.shares import LAYER_COLORS, TimeShares

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.waits import WaitStates
    from hocket.observe.saved import ObservedRun

_WIDTH = 10.0
_MOST_NUMBERS = 16  # ranks up to which each cell of a matrix has its number
_MOST_DEVICES = 6


def timeline(shares: TimeShares) -> str:
    """Return the picture of what each process did over time; the color of a point is the mean of its time."""
    import numpy as np

    num_rows = len(shares.names)
    colors = np.array([_rgb(color) for color in LAYER_COLORS.values()])
    cells = np.stack([shares.by_layer[layer] for layer in LAYER_COLORS], axis=-1)
    lived = cells.sum(axis=-1, keepdims=True)
    image = np.clip(cells @ colors + (1 - lived), 0, 1)  # white before the begin and after the end of a process

    def draw(pyplot: Any, figure: Any) -> None:
        axes = figure.subplots()
        axes.imshow(image, aspect="auto", interpolation="nearest", extent=(0, shares.seconds, num_rows - 0.5, -0.5))
        axes.set_yticks(range(num_rows), shares.names, size=8)
        axes.set_xlabel("seconds since the run began")
        for row in range(num_rows - 1):
            axes.axhline(row + 0.5, color="white", linewidth=1)
        handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in LAYER_COLORS.values()]
        axes.legend(handles, LAYER_COLORS, ncols=3, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8)

    return _svg("timeline", float(np.clip(0.32 * num_rows + 1.3, 2.0, 14.0)), draw)


def matrix(cells: NDArray[np.number]) -> str:
    """Return the picture of the bytes between ranks, of shape (ranks, ranks)."""
    import numpy as np

    side = float(np.clip(0.5 * len(cells) + 2, 4.0, 9.0))
    return _svg("matrix", side, lambda _, figure: draw_matrix(figure.subplots(), cells), width=side + 1.5)


def draw_matrix(axes: Any, cells: NDArray[np.number]) -> None:
    """Draw bytes between ranks, with a bar of the colors beside them.

    Args:
        axes: of matplotlib.
        cells: of shape (ranks, ranks).
    """
    import numpy as np

    shown = np.where(cells > 0, cells, np.nan)
    image = axes.imshow(shown, cmap="viridis", interpolation="nearest", vmin=0)
    if len(cells) <= _MOST_NUMBERS:
        middle = np.nanmax(shown) / 2 if np.isfinite(shown).any() else 0
        for (row, column), value in np.ndenumerate(cells):
            if value > 0:
                text, color = format_nbytes(round(float(value))), "black" if value > middle else "white"
                axes.text(column, row, text, ha="center", va="center", size=7, color=color)
        axes.set_xticks(range(len(cells)))
        axes.set_yticks(range(len(cells)))
    axes.set_xlabel("receiving rank")
    axes.set_ylabel("sending rank")
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8)
    bar.ax.yaxis.set_major_formatter(lambda value, _: format_nbytes(round(value)))


def waits(states: WaitStates, names: Sequence[str]) -> str:
    """Return the picture of how long each process waited, and how long the others waited for it."""
    import numpy as np

    waited, caused = (
        np.bincount(states.rows[field], weights=states.rows["wait"], minlength=len(names))
        for field in ("process", "late_process")
    )
    shown = np.flatnonzero(waited + caused)

    def draw(_: Any, figure: Any) -> None:
        axes = figure.subplots()
        at = np.arange(len(shown))
        axes.barh(at - 0.2, waited[shown], 0.4, color=COLORS[0], label="waited")
        axes.barh(at + 0.2, caused[shown], 0.4, color=COLORS[1], label="the others waited for it")
        axes.set_yticks(at, [names[place] for place in shown.tolist()], size=8)
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8)

    return _svg("waits", float(np.clip(0.35 * len(shown) + 1.0, 1.8, 14.0)), draw)


def network(run: ObservedRun) -> str | None:
    """Return the picture of the bytes per second that devices sent; None: none sent anything worth it."""
    import numpy as np

    found = []
    for each in run.host_series:
        if each.source == "network" and len(each.rows) > 1:
            seconds = each.clock.seconds_at_ns(each.rows["time_ns"])
            steps = count_steps(each.rows["sent_nbytes"])
            found.append((float(np.nansum(steps)), each, seconds, steps / np.maximum(np.diff(seconds), 1e-9)))
    found = sorted((each for each in found if each[0] > 1 << 16), key=lambda each: -each[0])[:_MOST_DEVICES]
    if not found:
        return None

    def draw(_: Any, figure: Any) -> None:
        axes = figure.subplots()
        for (_, series, seconds, rates), color in zip(found, COLORS, strict=False):
            axes.stairs(rates, seconds, color=color, label=f"{series.name} of {series.host}", baseline=None)
        axes.yaxis.set_major_formatter(lambda value, _: f"{format_nbytes(round(value))}/s" if value >= 0 else "")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds since the run began")
        axes.legend(frameon=False, fontsize=8)

    return _svg("network", 2.6, draw)


def processors(run: ObservedRun) -> str | None:
    """Return the picture of the share of each host's processors that was busy; None: it was sampled only once."""
    import numpy as np

    found = []
    for each in run.host_series:
        if each.source == "host" and len(each.rows) > 1:
            names = [name for name in each.rows.dtype.names or () if name.startswith("cpu_")]
            total = sum(np.diff(each.rows[name]) for name in names)
            idle = np.diff(each.rows["cpu_idle_s"]) + np.diff(each.rows["cpu_iowait_s"])
            shares = 1 - idle / np.where(total > 0, total, np.nan)
            found.append((each.host, each.clock.seconds_at_ns(each.rows["time_ns"]), np.clip(shares, 0, 1)))
    if not found:
        return None

    def draw(_: Any, figure: Any) -> None:
        axes = figure.subplots()
        for (host, seconds, shares), color in zip(found[:_MOST_DEVICES], COLORS, strict=False):
            axes.stairs(shares, seconds, color=color, label=host, baseline=None)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_ylim(0, 1.05)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds since the run began")
        axes.legend(frameon=False, fontsize=8)

    return _svg("processors", 2.2, draw)


def _svg(name: str, height: float, draw: Callable[[Any, Any], None], width: float = _WIDTH) -> str:
    pyplot = load_pyplot()
    # Names from a run are no formulas; the salt keeps the identifiers of pictures apart.
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False}):
        figure = pyplot.figure(figsize=(width, height), layout="constrained")
        draw(pyplot, figure)
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    text = target.getvalue()
    return text[text.index("<svg") :]


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
