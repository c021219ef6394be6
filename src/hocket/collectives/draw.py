"""Draw a schedule: rounds or time from left to right, ranks from top to bottom, one line per message."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.collectives.schedule import Schedule
from hocket.collectives.simulate import Simulation
from hocket.errors import InvalidArgument
from hocket.measure.pictures import load_pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_MESSAGES = 4000
_MOST_LABELLED = 150
_TITLE_WIDTH = 76  # characters


def draw_schedule(schedule: Schedule, path: str | Path, simulation: Simulation | None = None) -> None:
    """Draw a schedule.

    Args:
        schedule: schedule with at most 4,000 messages between ranks.
        path: file of the picture; its suffix determines the format.
        simulation: simulation of the schedule, to draw messages over simulated time instead of rounds.

    Raises:
        InvalidArgument: the schedule has too many messages for a picture.
        BackendUnavailable: matplotlib is not installed.
    """
    starts = schedule.message_starts
    starts_remote = np.flatnonzero(schedule.is_remote[starts])
    if len(starts_remote) > MOST_MESSAGES:
        raise InvalidArgument(
            f"{len(starts_remote)} messages are too many for a picture, the limit is {MOST_MESSAGES}; use fewer ranks "
            "or blocks"
        )
    plt = load_pyplot()
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize

    rows = starts[starts_remote]
    if simulation is None:
        begins, ends = schedule.rounds[rows].astype(float), schedule.rounds[rows] + 0.85
        unit, span = "round", float(schedule.num_rounds)
    else:
        scale, unit = _time_unit(simulation.seconds)
        begins, ends = simulation.begin_s[starts_remote] * scale, simulation.end_s[starts_remote] * scale
        span = simulation.seconds * scale
    blocks = schedule.blocks[rows]
    colors = plt.get_cmap("turbo")(Normalize(0, max(1, schedule.num_blocks - 1))(blocks))
    height = min(12.0, max(2.4, 0.35 * schedule.num_ranks + 1.4))
    width = min(18.0, max(5.0, 0.45 * schedule.num_rounds + 2.0))
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    for rank in range(schedule.num_ranks):
        axes.axhline(rank, color="#d5dae0", linewidth=0.8, zorder=0)
    points = np.stack(
        [np.stack([begins, schedule.sources[rows]], axis=1), np.stack([ends, schedule.destinations[rows]], axis=1)],
        axis=1,
    )
    dashed = schedule.reduces[rows]
    for mask, style in ((~dashed, "solid"), (dashed, (0, (3, 1.5)))):
        axes.add_collection(LineCollection(list(points[mask]), colors=colors[mask], linewidths=1.4, linestyles=[style]))
    axes.scatter(ends, schedule.destinations[rows], s=14, color=colors, zorder=3)
    if len(rows) <= _MOST_LABELLED:
        _label(axes, schedule, starts_remote, begins)
    axes.set_xlim(-0.02 * span, 1.02 * span if span else 1)
    axes.set_ylim(schedule.num_ranks - 0.4, -0.6)
    axes.set_yticks(_ticks(schedule.num_ranks))
    axes.set_ylabel("rank")
    axes.set_xlabel(unit)
    given = ", ".join(f"{name} {value}" for name, value in schedule.parameters.items())
    title = f"{schedule.collective} by {schedule.algorithm}{f' ({given})' if given else ''}, {schedule.num_ranks} ranks"
    note = "simulated" if simulation is not None else f"{schedule.num_rounds} rounds"
    reduced = "; dashed: reduced on arrival" if dashed.any() else ""
    axes.set_title(f"{fill(title, _TITLE_WIDTH)}\n{note}; colour: block{reduced}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _label(axes: Axes, schedule: Schedule, messages: Any, begins: Any) -> None:
    """Write the blocks of every message next to its start."""
    ends = np.append(schedule.message_starts, len(schedule))
    for message, begin in zip(messages.tolist(), begins.tolist(), strict=True):
        first, last = int(ends[message]), int(ends[message + 1])
        blocks = schedule.blocks[first:last]
        others = "" if len(blocks) == 1 else f"-{blocks[-1]}" if (np.diff(blocks) == 1).all() else "..."
        text = f"{blocks[0]}{others}"
        axes.annotate(
            text, (begin, schedule.sources[first]), textcoords="offset points", xytext=(2, 2), fontsize=6, color="#333"
        )


def _ticks(num_ranks: int) -> Any:
    return np.arange(0, num_ranks, max(1, -(-num_ranks // 32)))


def _time_unit(seconds: float) -> tuple[float, str]:
    for scale, name in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1:
            return scale, name
    return 1e6, "us"
