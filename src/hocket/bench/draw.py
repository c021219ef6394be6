"""Draw the results of a benchmark: values by size with their intervals, one line per way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.bench.point import labels_of
from hocket.bench.registry import find_benchmark
from hocket.bench.result import Result, format_value
from hocket.comm.policy import format_nbytes
from hocket.measure.pictures import COLORS, load_pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_LINEAR_RATIO = 20  # largest over smallest value, above which the axis of bars is logarithmic


def draw_benchmark(results: Sequence[Result], path: str | Path) -> None:
    """Draw the results of one benchmark.

    With sizes: a line of medians per way, with a band for the 95 % intervals. Without sizes: a bar per way.

    Args:
        results: results of one benchmark.
        path: file of the picture; its suffix determines the format.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    plt = load_pyplot()
    benchmark = find_benchmark(results[0].point.benchmark)
    labels, common = labels_of(each.point for each in results)
    figure, axes = plt.subplots(
        figsize=(8, 4.6 if benchmark.has_sizes else 1.4 + 0.4 * len(labels)), layout="constrained"
    )
    if benchmark.has_sizes:
        for number, (way, label) in enumerate(labels.items()):
            of_way = [each for each in results if each.point.way == way]
            _draw_line(axes, of_way, COLORS[number % len(COLORS)], label)
        _scale_axes(axes, sorted({each.point.nbytes for each in results}))
    else:
        _draw_bars(axes, results, labels)
    value_label = {"us": "time, microseconds", "MB/s": "bandwidth, MB/s"}[benchmark.unit]
    (axes.set_ylabel if benchmark.has_sizes else axes.set_xlabel)(value_label)
    axes.set_title(f"{benchmark.name}, {results[0].num_ranks} ranks ({common})", fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    if benchmark.has_sizes:
        axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_line(axes: Axes, results: Sequence[Result], color: str, label: str) -> None:
    ordered = sorted(results, key=lambda each: each.point.nbytes)
    sizes = [each.point.nbytes for each in ordered]
    axes.plot(sizes, [each.value for each in ordered], ".-", color=color, label=label, linewidth=1.4)
    bands = [(each.point.nbytes, *each.interval) for each in ordered if each.interval is not None]
    if bands:
        band_sizes, low, high = zip(*bands, strict=True)
        axes.fill_between(band_sizes, low, high, color=color, alpha=0.2, linewidth=0)


def _draw_bars(axes: Axes, results: Sequence[Result], labels: Mapping[str, str]) -> None:
    values = [each.value for each in results]
    bars = axes.barh([labels[each.point.way] for each in results], values, height=0.6, color=COLORS[0])
    axes.bar_label(bars, [format_value(each) for each in values], padding=3, fontsize=9)
    axes.invert_yaxis()
    if max(values) > _MAX_LINEAR_RATIO * min(values):
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 2, 3 * max(values))


def _scale_axes(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("symlog" if sizes[0] == 0 else "log", base=2)
    axes.set_yscale("log")
    step = max(1, len(sizes) // 8)
    ticks = sizes[::step]
    axes.set_xticks(ticks, [format_nbytes(each) for each in ticks], fontsize=8)
    axes.minorticks_off()
