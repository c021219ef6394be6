"""Pictures of the times of gradient engines: bars of measured times, lines over numbers of ranks of simulated ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

from hocket.bench.engine_times import EngineTime, EngineTimes, rivals_of
from hocket.bench.result import format_value
from hocket.measure.pictures import COLORS, load_pyplot

_MODEL_WIDTH, _LABEL_WIDTH, _LEAST_WIDTH = 3.3, 1.7, 7.0  # inches
_BAR_HEIGHT, _LINES_HEIGHT = 0.25, 3.0
_LETTERS_PER_INCH = 14
_OTHER, _FASTEST, _INTERVAL = *COLORS[:2], "#444444"
_DASHES = ((5, 2), (2, 1.5), (6, 2, 1, 2), (9, 3), (1, 1))
_MARKERS = "os^Dv*PX<>"
Curve: TypeAlias = tuple[str, tuple[str, ...]]
"""An engine, and its setup (`_setup_of`)."""
_THICKEST, _THINNEST = 3.2, 1.0
_MOST_TICKS = 8
_MOST_OF_MEDIAN = 1.5
"""Intervals are drawn up to so many times the median: one of a busy machine would leave no room for the others. Where
one is cut, there is a mark, and its end is written."""
_CUT_MARK = ">"
_SAME_PLACE = 0.045
"""Lines that end less than this share of an axis apart have a common label."""


def draw_engines(times: EngineTimes, path: str | Path) -> None:
    """Draw the time of a step: a column for each model, with bars of measured times above lines of simulated ones.

    Bars of an engine are grouped if it was measured with several batches. A bar is red if it is the fastest of its
    model and batch, and its 95 % interval overlaps no other. Simulated times are dashed lines over the number of ranks.

    Args:
        times: results.
        path: file of the picture; its suffix determines the format.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    plt = load_pyplot()
    models = list(dict.fromkeys(each.model for each in times.rows))
    engines = list(dict.fromkeys(each.engine for each in times.rows))
    measured = [each for each in times.rows if not each.is_simulated]
    simulated = [each for each in times.rows if each.is_simulated]
    num_bars = len({(each.engine, *_setup_of(each)) for each in measured})
    heights = [0.5 + _BAR_HEIGHT * max(num_bars, 3)] * bool(measured) + [_LINES_HEIGHT] * bool(simulated)
    width = max(_LEAST_WIDTH, _LABEL_WIDTH + _MODEL_WIDTH * len(models))
    title = fill(_title_of(times, measured, simulated), int(width * _LETTERS_PER_INCH))
    letters = 3 + max((len(each.engine) + len(_label_of(each, _differing(simulated))) for each in simulated), default=0)
    num_columns = max(1, int(width / (0.07 * letters + 0.8)))
    curves = list(dict.fromkeys((each.engine, _setup_of(each)) for each in simulated))
    figure, every_axes = plt.subplots(
        len(heights),
        len(models),
        figsize=(width, sum(heights) + 0.3 + 0.17 * (title.count("\n") + 1 + math.ceil(len(curves) / num_columns))),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for column, model in enumerate(models):
        if measured:
            rows = [each for each in measured if each.model == model]
            _draw_bars(every_axes[0][column], rows, engines, _differing(measured), has_names=column == 0)
        if simulated:
            rows = [each for each in simulated if each.model == model]
            _draw_lines(every_axes[-1][column], rows, curves, _differing(simulated))
    if simulated:
        by_label = {line.get_label(): line for axes in every_axes[-1] for line in axes.get_lines()}
        texts = [_label_of_curve(each, _differing(simulated)) for each in curves]
        numbered = {f"{number} {text}": by_label[text] for number, text in enumerate(texts, 1)}
        style = {"frameon": False, "fontsize": 8, "handlelength": 4}
        figure.legend(numbered.values(), numbered, loc="outside lower left", ncols=num_columns, **style)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _setup_of(row: EngineTime) -> tuple[str, ...]:
    """Under what a row was measured beside its model, in words; ranks of simulated rows are their axis."""
    ranks = f"{row.num_ranks} rank{'s' * (row.num_ranks > 1)}"
    hosts = f"{row.num_hosts} host{'s' * (row.num_hosts > 1)}"
    return (
        f"batch {row.batch}",
        f"{row.compute_ms:g} ms of computation" if row.compute_ms else "",
        "" if row.is_simulated else f"{ranks} on {hosts}",
    )


def _differing(rows: Sequence[EngineTime]) -> list[int]:
    """The places of `_setup_of` in which rows differ."""
    return [place for place, texts in enumerate(zip(*map(_setup_of, rows), strict=True)) if len(set(texts)) > 1]


def _label_of(row: EngineTime, differing: Sequence[int]) -> str:
    return _label_of_setup(_setup_of(row), differing)


def _label_of_curve(curve: Curve, differing: Sequence[int]) -> str:
    engine, setup = curve
    label = _label_of_setup(setup, differing)
    return f"{engine} ({label})" if label else engine


def _label_of_setup(setup: Sequence[str], differing: Sequence[int]) -> str:
    # A larger batch has more computation: it is said once.
    told = [place for place in differing if place != 1 or 0 not in differing]
    return ", ".join(text for place in told if (text := setup[place]))


def _title_of(times: EngineTimes, measured: Sequence[EngineTime], simulated: Sequence[EngineTime]) -> str:
    """What all axes have in common."""
    found = "Milliseconds of a step with the exchange of all gradients"
    if measured:
        differing = _differing(measured)
        common = [text for place, text in enumerate(_setup_of(measured[0])) if text and place not in differing]
        found += f"; {', '.join(['measured', *common])}, medians with 95 % intervals, red: clearly the fastest"
        if any(map(_is_cut, measured)):
            found += f"; {_CUT_MARK}: the interval is longer than its line, and its end is written"
    return (
        f"{found}; dashed: simulated over {times.link}, with the numbers of lines at their ends" if simulated else found
    )


def _drawn_end(row: EngineTime) -> float:
    return min(row.high_ms, _MOST_OF_MEDIAN * row.ms)


def _is_cut(row: EngineTime) -> bool:
    return _drawn_end(row) < row.high_ms


def _text_of(row: EngineTime, differing: Sequence[int]) -> str:
    """What stands behind a bar."""
    label = _label_of(row, differing)
    end = f", to {format_value(row.high_ms)}" if _is_cut(row) else ""
    return f"{format_value(row.ms)}{end}{f' ({label})' if label else ''}"


def _draw_bars(
    axes: Any, rows: Sequence[EngineTime], engines: Sequence[str], differing: Sequence[int], *, has_names: bool
) -> None:
    setups = list(dict.fromkeys(map(_setup_of, rows)))
    fastest = set()
    for setup in setups:
        best, rivals = rivals_of(own := [each for each in rows if _setup_of(each) == setup])
        if len(own) > 1 and not rivals:
            fastest.add(best)
    height = 0.8 / max(len(setups), 1)
    for row in rows:
        number = setups.index(_setup_of(row))
        place = engines.index(row.engine) + (number - (len(setups) - 1) / 2) * height
        axes.barh(
            place,
            row.ms,
            height=0.85 * height,
            color=_FASTEST if row in fastest else _OTHER,
            alpha=1 - 0.6 * number / max(len(setups), 2),
            xerr=[[row.ms - row.low_ms], [_drawn_end(row) - row.ms]],
            ecolor=_INTERVAL,
        )
        if _is_cut(row):
            axes.plot([_drawn_end(row)], [place], _CUT_MARK, color=_INTERVAL, markersize=4, linestyle="none")
        space = "  " if _is_cut(row) else " "
        axes.text(_drawn_end(row), place, space + _text_of(row, differing), va="center", fontsize=7)
    axes.set_yticks(range(len(engines)), engines if has_names else [""] * len(engines), fontsize=8)
    axes.set_ylim(len(engines) - 0.4, -0.6)
    longest = max((len(_text_of(each, differing)) for each in rows), default=0)
    axes.set_xlim(0, (1.05 + 0.04 * longest) * max(map(_drawn_end, rows), default=1.0))
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if rows:
        axes.set_title(f"{rows[0].model}, {rows[0].nbytes / 1e6:.3g} MB", fontsize=9, loc="left")


def _draw_lines(axes: Any, rows: Sequence[EngineTime], curves: Sequence[Curve], differing: Sequence[int]) -> None:
    """Draw a line for each curve, with its number at the end.

    The first ones are the thickest, so that those behind others are seen, too.
    """
    engines = list(dict.fromkeys(engine for engine, _ in curves))
    ends: dict[int, list[tuple[float, int]]] = {}
    for number, (engine, setup) in enumerate(curves):
        own = [each for each in rows if (each.engine, _setup_of(each)) == (engine, setup)]
        if not own:
            continue
        own.sort(key=lambda each: each.num_ranks)
        ends.setdefault(own[-1].num_ranks, []).append((own[-1].ms, number + 1))
        place = engines.index(engine)
        is_first_setup = (engine, setup) == next(each for each in curves if each[0] == engine)
        axes.plot(
            [each.num_ranks for each in own],
            [each.ms for each in own],
            label=_label_of_curve((engine, setup), differing),
            color=COLORS[place % len(COLORS)],
            dashes=_DASHES[place % len(_DASHES)],
            marker=_MARKERS[place % len(_MARKERS)],
            markerfacecolor=COLORS[place % len(COLORS)] if is_first_setup else "white",
            markersize=4,
            linewidth=_THICKEST - (_THICKEST - _THINNEST) * number / max(len(curves) - 1, 1),
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.minorticks_off()
    ranks = sorted({each.num_ranks for each in rows})
    shown = ranks[:: math.ceil(len(ranks) / _MOST_TICKS) or 1]
    axes.set_xticks(shown, [str(each) for each in shown], fontsize=8)
    if rows:
        ticks = _ticks_between(min(each.ms for each in rows), max(each.ms for each in rows))
        axes.set_yticks(ticks, [f"{each:g}" for each in ticks], fontsize=8)
        axes.set_title(f"{rows[0].model}, simulated", fontsize=9, loc="left")
    span = math.log(axes.get_ylim()[1] / axes.get_ylim()[0])
    for num_ranks, found in ends.items():
        for ms, text in _labels_of_ends(found, _SAME_PLACE * span):
            axes.annotate(text, (num_ranks, ms), (6, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_xlabel("ranks", fontsize=8)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _labels_of_ends(ends: Sequence[tuple[float, int]], least: float) -> list[tuple[float, str]]:
    """Return labels and their places, at least so far apart in logarithms: numbers of lines, in common where they must.

    Args:
        ends: last value of each line, and its number.
        least: distance, which keeps labels apart.
    """
    groups: list[tuple[float, list[int]]] = []
    for ms, number in sorted(ends):
        if groups and math.log(ms / groups[-1][0]) < least:
            groups[-1][1].append(number)
        else:
            groups.append((ms, [number]))
    return [(lowest_ms, ", ".join(map(str, sorted(numbers)))) for lowest_ms, numbers in groups]


def _ticks_between(low: float, high: float) -> list[float]:
    """Places of a logarithmic axis that people can read: from below the lowest value to above the highest one."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if last - first > _MOST_TICKS // 2:
        step = math.ceil((last - first) / _MOST_TICKS)
        return [10.0**power for power in range(first, last + 1, step)]
    every = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
    below = max((each for each in every if each <= low), default=every[0])
    above = min((each for each in every if each >= high), default=every[-1])
    return [each for each in every if below <= each <= above]
