"""Draw the pictures: one function per panel; as inline SVG for the page, and all panels as one PNG."""

import re
from collections import defaultdict
from collections.abc import Callable
from io import StringIO
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from results import BACKENDS, REQUIRED_ACCURACY, Demo
from wording import share_text

matplotlib.use("Agg")

COLORS = {"gloo": "#e08a3c", "hocket": "#2f8f83"}
OP_COLORS = ("#2f8f83", "#7c6fc4", "#e08a3c", "#c4577a", "#5b8fd0", "#8d9a3b")
INK = "#1d2330"  # replaced by the page's text colour, so that one picture fits light and dark mode
STYLE: Any = {
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "svg.fonttype": "none",
    "svg.hashsalt": "hocket",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
# Bitwise equal losses coincide, so gloo is a broad band and hocket a thin line on top of it.
LINES: dict[str, Any] = {
    "gloo": {"color": COLORS["gloo"], "linewidth": 5, "alpha": 0.45, "solid_capstyle": "round"},
    "hocket": {"color": COLORS["hocket"], "linewidth": 1.6},
}


def draw_loss(axes: Axes, demo: Demo) -> None:
    axes.set_title("Training loss")
    for name in BACKENDS:
        losses = np.asarray(demo.trainings[name].losses)
        window = max(1, min(50, len(losses) // 4))
        smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
        axes.plot(np.arange(window, len(losses) + 1), smooth, label=name, **LINES[name])
    axes.set(yscale="log", xlabel="step", ylabel=f"loss, mean of {window} steps")
    axes.legend()


def draw_accuracy(axes: Axes, demo: Demo) -> None:
    axes.set_title("Test accuracy")
    for name in BACKENDS:
        accuracy = demo.trainings[name].accuracy
        axes.plot(range(1, len(accuracy) + 1), accuracy, marker="o", markersize=4, label=name, **LINES[name])
    axes.axhline(REQUIRED_ACCURACY, color=INK, linewidth=1, linestyle=":", alpha=0.7)
    axes.set(xlabel="epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}" if value <= 1 else ""))
    axes.legend(loc="lower right")


def draw_step_time(axes: Axes, demo: Demo) -> None:
    axes.set_title("Time of one training step")
    timing = demo.timing
    if timing.too_busy:
        withhold(axes)
        return
    for row, name in enumerate(BACKENDS):
        step, compute = timing.step_ms[name], timing.no_sync_ms[name]
        exchange = max(0.0, step.median - compute.median)
        error = [[max(0.0, step.median - step.low)], [max(0.0, step.high - step.median)]]
        axes.barh(row, compute.median, color=COLORS[name], alpha=0.35, height=0.5)
        axes.barh(row, exchange, left=compute.median, color=COLORS[name], height=0.5, xerr=error, ecolor=INK, capsize=4)
        share = share_text(timing.share[name]).partition("\n")[0]  # without its interval
        axes.text(0.02 * step.median, row + 0.3, f"{step.median:.2f} ms, communication {share}")
    axes.set_yticks(range(len(BACKENDS)), BACKENDS)
    axes.set(xlabel="milliseconds; pale: computation, full: gradient exchange", ylim=(-0.5, len(BACKENDS) - 0.25))
    axes.grid(axis="y", visible=False)


def draw_rounds(axes: Axes, demo: Demo) -> None:
    axes.set_title("Every round of the timing job")
    if demo.timing.too_busy:
        withhold(axes)
        return
    for name in BACKENDS:
        for variant, marker, alpha in ((name, "o", 1.0), (f"{name} no_sync", ".", 0.45)):
            times = demo.timing.rounds_ms[variant]
            rounds = range(1, len(times) + 1)
            axes.plot(rounds, times, marker, color=COLORS[name], markersize=5, alpha=alpha, label=variant)
    axes.set(xlabel="round", ylabel="milliseconds per step", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(ncols=2, loc="lower right", fontsize=8.5)


def draw_sizes(axes: Axes, demo: Demo) -> None:
    axes.set_title("Operations by size")
    histogram(axes, demo, "nbytes", 2.0 ** np.arange(0, 25))
    axes.set(xlabel="size of an operation", xticks=2.0 ** np.arange(0, 25, 4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: bytes_text(value)))


def draw_times(axes: Axes, demo: Demo) -> None:
    axes.set_title("Operations by time")
    seconds = [record["seconds"] for record in demo.trainings["hocket"].operations]
    first, last = np.floor(np.log10(max(min(seconds), 1e-9))), np.ceil(np.log10(max(seconds)))
    histogram(axes, demo, "seconds", np.logspace(first, last, 1 + 8 * int(last - first)))
    axes.set(xlabel="time from issue to completion", xticks=10.0 ** np.arange(first, last + 1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))


def withhold(axes: Axes) -> None:
    """Write in the panel why its picture is withheld."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, "withheld: other programs kept\nthe machine busy", ha="center", va="center", alpha=0.7)


PANELS: dict[str, Callable[[Axes, Demo], None]] = {
    "step_time": draw_step_time,
    "rounds": draw_rounds,
    "loss": draw_loss,
    "accuracy": draw_accuracy,
    "sizes": draw_sizes,
    "times": draw_times,
}


def histogram(axes: Axes, demo: Demo, key: str, bins: np.ndarray) -> None:
    """Draw a histogram of a field of the training's records: one colour per operation, rare ones in front."""
    values: dict[str, list[float]] = defaultdict(list)
    for record in demo.trainings["hocket"].operations:
        values[record["op"]].append(record[key])
    frequent_first = sorted(values, key=lambda name: -len(values[name]))
    for name, color in zip(frequent_first, cycle(OP_COLORS), strict=False):
        clipped = np.clip(values[name], bins[0], bins[-1])
        axes.hist(clipped, bins=bins, color=color, alpha=0.8, histtype="stepfilled", label=name)
    axes.set(xscale="log", yscale="log", ylabel="operations", ylim=(0.7, None))
    axes.minorticks_off()
    axes.legend(fontsize=8.5, loc="upper left")


def bytes_text(value: float) -> str:
    """Format a tick that is a power of two: 1 B, 16 KiB, ..."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:g} {unit}"
        value /= 1024
    return f"{value:g} GiB"


def time_text(seconds: float) -> str:
    """Format a tick that is a power of ten: 1 µs, 10 ms, ..."""
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999:
            return f"{seconds * factor:.0f} {unit}"
    return f"{seconds:.0f} s"


def inline_svgs(demo: Demo) -> dict[str, str]:
    """Return every panel as an SVG element for the page, with text in the page's colour and unique ids."""
    return {name: _inline_svg(name, demo) for name in PANELS}


def _inline_svg(name: str, demo: Demo) -> str:
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(5.6, 3.5), layout="constrained")
        PANELS[name](axes, demo)
        target = StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    svg = target.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'role="img" aria-label="{name}"', svg, count=1)


def save_picture(demo: Demo, path: Path, description: str) -> None:
    """Save all panels as one PNG for the README; `description` is stored in its metadata."""
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(2, 3, figsize=(14, 7), layout="constrained")
        for axes, draw in zip(grid.T.flat, PANELS.values(), strict=True):
            draw(axes, demo)
        figure.savefig(path, format="png", dpi=110, facecolor="white", metadata={"Description": description})
        plt.close(figure)
