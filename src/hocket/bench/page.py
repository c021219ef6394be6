"""A self-contained page of results: tables and pictures, without external files."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from hocket.bench.draw import draw_benchmark
from hocket.bench.point import labels_of
from hocket.bench.registry import find_benchmark
from hocket.bench.result import Result, clearly_fastest, format_value
from hocket.bench.run import Run
from hocket.comm.policy import format_nbytes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22282e; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #d5dade }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .6rem 0 }
th, td { padding: .15rem .8rem; text-align: right; border-bottom: 1px solid #eceff1; white-space: nowrap }
th { font-weight: 600 } td.best { font-weight: 600 } td small { color: #77818a } img { max-width: 100% }
.note { color: #5b6770 } .warning { color: #a33 }
@media (prefers-color-scheme: dark) { body { background: #16191c; color: #dde3e8 } img { background: #fff }
  th, td { border-color: #2c3338 } h2 { border-color: #39424a } }
"""


def make_page(runs: Mapping[str, Run], picture_folder: Path | None = None) -> str:
    """Return the HTML of a page of results.

    Args:
        runs: runs by name, for example by file name.
        picture_folder: folder for copies of the pictures; None: no copies.

    Examples:
        >>> from hocket.bench import Run, make_page
        >>> run = Run((), core_factor=1.9, foreign_busy=0.0, warnings=("4 ranks share 2 CPUs",))
        >>> page = make_page({"run.json": run})
        >>> "4 ranks share 2 CPUs" in page
        True
    """
    parts = [f"<h1>hocket bench: {escape(', '.join(runs))}</h1>"]
    for name, run in runs.items():
        if len(runs) > 1:
            parts.append(f"<h1>{escape(name)}</h1>")
        parts.append(
            '<p class="note">Medians of the slowest rank, with half of their 95 % intervals. '
            f"Core factor {run.core_factor:.2f}, other programs {run.foreign_busy:.0%} of the CPU time.</p>"
        )
        parts += [f'<p class="warning">{escape(each)}</p>' for each in run.warnings]
        ordered = sorted(run.results, key=lambda each: each.point.benchmark)
        for benchmark, results in groupby(ordered, key=lambda each: each.point.benchmark):
            stem = benchmark if len(runs) == 1 else f"{name}-{benchmark}"
            parts.append(_section(benchmark, list(results), picture_folder, stem))
    title = escape(f"hocket bench: {', '.join(runs)}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _section(name: str, results: Sequence[Result], picture_folder: Path | None, stem: str) -> str:
    benchmark = find_benchmark(name)
    labels, common = labels_of(each.point for each in results)
    headings = "".join(f"<th>{escape(label)}</th>" for label in labels.values())
    rows = []
    for nbytes in sorted({each.point.nbytes for each in results}):
        of_row = {each.point.way: each for each in results if each.point.nbytes == nbytes}
        best = clearly_fastest(of_row.values())
        cells = "".join(_cell(of_row.get(way), best) for way in labels)
        rows.append(f"<tr><th>{format_nbytes(nbytes) if benchmark.has_sizes else ''}</th>{cells}</tr>")
    with tempfile.TemporaryDirectory() as folder:
        path = (picture_folder or Path(folder)) / f"{stem}.png"
        draw_benchmark(results, path)
        picture = base64.b64encode(path.read_bytes()).decode()
    return (
        f"<h2>{escape(name)}: {escape(benchmark.summary)}, {benchmark.unit}</h2>"
        f'<p class="note">{escape(str(results[0].num_ranks))} ranks; {escape(common)}</p>'
        f'<img alt="{escape(name)} by size" src="data:image/png;base64,{picture}">'
        f"<table><tr><th>size</th>{headings}</tr>{''.join(rows)}</table>"
    )


def _cell(result: Result | None, best: Result | None) -> str:
    if result is None:
        return "<td></td>"
    half_width = "" if result.precision is None else f" <small>±{100 * result.precision:.0f} %</small>"
    css_class = ' class="best"' if result is best else ""
    overlap = "" if result.overlap is None else f", {result.overlap:.0f} % hidden"
    return f"<td{css_class}>{format_value(result.value)}{half_width}{overlap}</td>"
