"""Draw the rows of a benchmark: the speed-up over the best rival, with 95 % intervals and targets.

Usage: python benchmarks/allreduce_cpu.py --json > result.json && python benchmarks/draw.py result.json picture.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hocket.measure.pictures import load_pyplot


def draw(result: dict, path: Path) -> None:
    """Draw the rows that have a target.

    Args:
        result: the parsed last line of the output of a benchmark.
        path: path of the picture; its suffix selects the format.
    """
    rows = [row for row in result["rows"] if row["target"]]
    figure, axes = load_pyplot().subplots(figsize=(8, 0.55 * len(rows) + 1.2), layout="constrained")
    for place, row in enumerate(reversed(rows)):
        low, high = row["interval"] or (row["ratio"],) * 2  # a computed row has no interval
        axes.barh(place, row["ratio"], color="#2a78b8", height=0.6)
        axes.plot([low, high], [place, place], color="black", linewidth=1.5)
        axes.plot([row["target"]] * 2, [place - 0.35, place + 0.35], color="#d1495b", linewidth=2)
        times = f"{row['ours']:.3g} {row['unit']} against {row['theirs']:.3g}"
        axes.annotate(times, (max(high, row["ratio"]), place), (6, 0), textcoords="offset points", va="center", size=8)
    axes.set_yticks(range(len(rows)), [f"{row['case']}\n{row['rival']}" for row in reversed(rows)], size=8)
    axes.set_xscale("log")
    axes.set_xlim(0.7, 3 * max((row["interval"] or [row["ratio"]])[-1] for row in rows))
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("times faster than the rival (bar: median, black: 95 % interval, red: target)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text().strip().splitlines()[-1]), target)
