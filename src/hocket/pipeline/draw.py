"""Draw timelines: ranks from top to bottom, time from left to right; several timelines share one time scale."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InvalidArgument
from hocket.measure.pictures import load_pyplot
from hocket.pipeline.kind import kinds
from hocket.pipeline.timeline import PipelineTimeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ACTIONS = 30_000
_MOST_LABELS = 1500
_MOST_ARROWS = 400
_PALEST = 0.5


def draw_timelines(
    timelines: PipelineTimeline | Sequence[PipelineTimeline],
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    messages: bool = False,
    memory: bool = False,
) -> None:
    """Draw one timeline, or several timelines to compare.

    Args:
        timelines: simulated or measured timelines.
        path: file of the picture; its suffix determines the format.
        titles: titles of the timelines; by default name, size and bubbles.
        messages: whether to draw an arrow for every message between ranks, if they are at most 400.
        memory: whether to draw the memory use of every rank as a line.

    Raises:
        InvalidArgument: there are too many actions for a picture, or the number of titles is wrong.
        BackendUnavailable: matplotlib is not installed.

    Examples:
        >>> from pathlib import Path
        >>> timeline = hk.pipeline.simulate(hk.pipeline.build("1f1b", 4, 8))
        >>> hk.pipeline.draw_timelines(timeline, "pipeline.svg")
        >>> Path("pipeline.svg").exists()
        True
    """
    several = [timelines] if isinstance(timelines, PipelineTimeline) else list(timelines)
    titles = [title_of(each) for each in several] if titles is None else titles
    num_actions = sum(len(each.schedule) for each in several)
    if not several or len(titles) != len(several):
        raise InvalidArgument(f"each timeline needs one title: got {len(several)} timelines and {len(titles)} titles")
    if num_actions > MOST_ACTIONS:
        raise InvalidArgument(
            f"{num_actions} actions are too many for a picture, the limit is {MOST_ACTIONS}; draw fewer ranks or "
            "micro-batches, or write a trace"
        )
    plt = load_pyplot()
    heights = [max(2.7, 0.32 * each.schedule.num_ranks + 0.9) for each in several]
    longest = max(each.makespan_s for each in several) or 1.0
    scale, unit = _time_unit(longest)
    cells = max(_cells(each) for each in several)
    width = float(np.clip(0.22 * cells + 2.0, 7.0, 13.0))
    figure, axes = plt.subplots(
        len(several), 1, figsize=(width, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for timeline, title, ax in zip(several, titles, axes[:, 0], strict=True):
        _draw(ax, timeline, scale, messages, memory, width / (longest * scale))
        ax.set_xlim(0.0, longest * scale)
        ax.set_title(title, fontsize=9, loc="left")
        ax.set_xlabel(unit)
    _add_legend(plt, figure, several)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def title_of(timeline: PipelineTimeline) -> str:
    """Return a title: name, parameters and bubbles of a timeline."""
    schedule = timeline.schedule
    given = "".join(f", {name} {value}" for name, value in schedule.parameters.items() if value is not None)
    scale, unit = _time_unit(timeline.makespan_s)
    return (
        f"{schedule.name}: {schedule.num_ranks} ranks, {schedule.num_micro_batches} micro-batches{given}\n"
        f"{timeline.source}: {timeline.makespan_s * scale:.4g} {unit}, bubbles {timeline.bubble('sync'):.1%} of the "
        f"step, {timeline.bubble('span'):.1%} of the span"
    )


def _draw(
    ax: Axes, timeline: PipelineTimeline, scale: float, messages: bool, memory: bool, inches_per_unit: float
) -> None:
    begins, ends = timeline.begin_s * scale, timeline.end_s * scale
    lows, heights = _lanes(timeline)
    shown = np.flatnonzero(ends > begins)
    colors = _colors(timeline)
    from matplotlib.collections import PolyCollection

    corners = [
        [(begins[row], lows[row]), (ends[row], lows[row])]
        + [(ends[row], lows[row] + heights[row]), (begins[row], lows[row] + heights[row])]
        for row in shown
    ]
    ax.add_collection(PolyCollection(corners, facecolors=colors[shown], edgecolors="white", linewidths=0.5, zorder=2))
    if len(shown) <= _MOST_LABELS:
        for row in shown.tolist():
            label = _label(timeline, row)
            size = min(8.0, 90.0 * (ends[row] - begins[row]) * inches_per_unit / max(1, len(label)))
            if size >= 3.5 and heights[row] > 0.3:
                ax.text(
                    (begins[row] + ends[row]) / 2, lows[row] + heights[row] / 2, label,
                    ha="center", va="center", fontsize=size, color="#1c2733", zorder=3,
                )  # fmt: skip
    num_ranks = timeline.schedule.num_ranks
    for rank in range(num_ranks):
        ax.axhspan(rank - 0.4, rank + 0.4, color="#f1f3f5", zorder=0)
    if messages and len(timeline.messages) <= _MOST_ARROWS:
        _add_arrows(ax, timeline, scale)
    if memory:
        _add_memory(ax, timeline, scale)
    ax.set_ylim(num_ranks - 0.5, -0.5)
    ax.set_yticks(range(0, num_ranks, max(1, num_ranks // 16)))
    ax.set_ylabel("rank")
    ax.tick_params(labelsize=8)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def _lanes(timeline: PipelineTimeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return position and height of every bar: overlapping actions share a row, background actions lie below it."""
    columns = timeline.schedule.columns
    sizes = np.bincount(columns.groups)
    starts = np.flatnonzero(~columns.with_previous)
    index_in_group = np.arange(len(columns)) - starts[columns.groups]
    heights = 0.76 / sizes[columns.groups]
    lows = columns.rank - 0.38 + index_in_group * heights
    in_background = np.array([kinds()[name].resource != "rank" for name in columns.kinds], np.bool_)[columns.kind]
    return np.where(in_background, columns.rank + 0.38, lows), np.where(in_background, 0.1, heights)


def _colors(timeline: PipelineTimeline) -> NDArray[np.float64]:
    """Return the colour of every action's kind, paler for the second and later stages of a rank."""
    from matplotlib.colors import to_rgb

    schedule, columns = timeline.schedule, timeline.schedule.columns
    base = np.array([to_rgb(kinds()[name].color) for name in columns.kinds])[columns.kind]
    order = np.zeros((schedule.num_pipes, schedule.num_stages))
    for rank in range(schedule.num_ranks):
        held = schedule.placement.stages_of(rank)
        for number, (pipe, stage) in enumerate(held):
            order[pipe, stage] = number / max(1, len(held) - 1) if len(held) > 1 else 0.0
    paler = (_PALEST * order[columns.pipe, columns.stage])[:, np.newaxis]
    return base * (1 - paler) + paler


def _label(timeline: PipelineTimeline, row: int) -> str:
    action = timeline.schedule.action(row)
    if action.micro_batch < 0:
        return str(action.stage)
    last = action.micro_batch + action.width - 1
    return str(last) if action.width == 1 else f"{action.micro_batch}-{last}"


def _add_arrows(ax: Axes, timeline: PipelineTimeline, scale: float) -> None:
    messages = timeline.messages
    for number in range(len(messages)):
        ax.annotate(
            "",
            (timeline.message_end_s[number] * scale, messages.to_rank[number]),
            (timeline.message_begin_s[number] * scale, messages.from_rank[number]),
            arrowprops={"arrowstyle": "->", "lw": 0.6, "color": "#55606b", "shrinkA": 0, "shrinkB": 0},
            zorder=4,
        )


def _add_memory(ax: Axes, timeline: PipelineTimeline, scale: float) -> None:
    """Draw a line through every rank's row: its memory use relative to the largest peak."""
    columns, use = timeline.schedule.columns, timeline.memory
    most = float(use.peak_nbytes.max(initial=0.0)) or 1.0
    for rank, (first, last) in enumerate(pairwise(columns.starts.tolist())):
        if first < last:
            times = np.stack([timeline.begin_s[first:last], timeline.end_s[first:last]], axis=1).ravel() * scale
            held = np.stack([use.during_nbytes[first:last], use.after_nbytes[first:last]], axis=1).ravel() / most
            ax.step(times, rank + 0.38 - 0.76 * held, where="post", color="#1c2733", linewidth=0.9, zorder=5)


def _add_legend(plt: Any, figure: Any, timelines: Sequence[PipelineTimeline]) -> None:
    shown = dict.fromkeys(
        name
        for each in timelines
        for number, name in enumerate(each.schedule.columns.kinds)
        if (each.end_s - each.begin_s)[each.schedule.columns.kind == number].any()
    )
    patches = [plt.Rectangle((0, 0), 1, 1, color=kinds()[name].color) for name in shown]
    labels = [f"{name}: {kinds()[name].description.partition(';')[0]}" for name in shown]
    columns = max(1, int(figure.get_figwidth() / 3.2))
    figure.legend(patches, labels, loc="outside lower center", ncols=columns, fontsize=7, frameon=False)


def _cells(timeline: PipelineTimeline) -> float:
    """Return how many short actions (10th percentile) fit into the makespan."""
    seconds = (timeline.end_s - timeline.begin_s)[timeline.end_s > timeline.begin_s]
    return timeline.makespan_s / float(np.quantile(seconds, 0.1)) if seconds.size else 1.0


def _time_unit(seconds: float) -> tuple[float, str]:
    for scale, name in ((1.0, "s"), (1e3, "ms")):
        if seconds * scale >= 1 or seconds == 0:
            return scale, name
    return 1e6, "us"
