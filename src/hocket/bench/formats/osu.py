"""The text format of the OSU micro-benchmarks, with the same columns, for scripts that parse their output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import median

from hocket.bench.layout import ResultLayout
from hocket.bench.registry import find_benchmark
from hocket.bench.result import ALONE, BEGIN, PRODUCT, Result
from hocket.bench.run import Run

_COLUMNS = {"us": "Latency (us)", "MB/s": "Bandwidth (MB/s)"}


def write(run: Run, layout: ResultLayout) -> str:
    """Return a table per benchmark and way, with sizes and medians of times or bandwidths."""
    by_table = sorted(run.results, key=_table_key)
    return "\n".join(_table(name, way, list(results), layout) for (name, way), results in groupby(by_table, _table_key))


def _table(name: str, way: str, results: Sequence[Result], layout: ResultLayout) -> str:
    benchmark = find_benchmark(name)
    headings = ["# Size (B)"] if benchmark.has_sizes else []
    counts_messages = benchmark.unit != "us" and benchmark.needs_pairs
    overlaps = any(each.overlap is not None for each in results)
    if overlaps:
        parts = ["Coll. Init(us)", "MPI_Test(us)", "MPI_Wait(us)"] if layout.full else []
        ends = ["Min Comm.(us)", "Max Comm.(us)"] if layout.full else []
        headings += ["Overall(us)", "Compute(us)", *parts, "Pure Comm.(us)", *ends, "Overlap(%)"]
    elif counts_messages:
        headings += ["MB/s", "Messages/s"]
    else:
        headings.append("Avg Latency(us)" if benchmark.op else _COLUMNS[benchmark.unit])
    if layout.full and not overlaps:
        headings += ["Min Latency(us)", "Max Latency(us)", "Iterations"]
    headings += [f"P{percent:g} Tail Lat(us)" for percent in layout.percentiles]
    title = f"{benchmark.title} Latency" if benchmark.op else benchmark.title
    line = _line(headings, benchmark.has_sizes)
    lines = [
        f"# OSU MPI {title} Test (hocket bench, {way})",
        *(["# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait"] if overlaps else []),
        line if benchmark.has_sizes else f"#{line[1:]}",
    ]
    for each in results:
        cells = [str(each.point.nbytes)] if benchmark.has_sizes else []
        cells.append(f"{each.value:.2f}")
        if overlaps:
            cells += _overlap_cells(each, layout)
        if counts_messages:
            cells.append(f"{1e6 * each.value / each.point.nbytes:.2f}")
        if layout.full and not overlaps:
            cells += [f"{each.percentile(0):.2f}", f"{each.percentile(100):.2f}", str(each.num_timed)]
        cells += [f"{each.percentile(percent):.2f}" for percent in layout.percentiles]
        lines.append(_line(cells, benchmark.has_sizes))
    return "\n".join(lines) + "\n"


def _overlap_cells(result: Result, layout: ResultLayout) -> list[str]:
    """Return the cells after the overall time.

    MPI_Test is never called. The wait is the overall time without the product and the start of the operation, so that
    the parts add up as in OMB. For results without the time of the start, the start and the wait are "nan".
    """
    product_us, alone_us = (1e6 * median(result.parts[part]) for part in (PRODUCT, ALONE))
    cells = [f"{product_us:.2f}"]
    if layout.full:
        begin_us = 1e6 * median(result.parts[BEGIN]) if BEGIN in result.parts else math.nan
        cells += [f"{each:.2f}" for each in (begin_us, 0.0, max(result.value - product_us - begin_us, 0.0))]
    cells.append(f"{alone_us:.2f}")
    if layout.full:
        cells += [f"{1e6 * each(result.parts[ALONE]):.2f}" for each in (min, max)]
    return [*cells, f"{result.overlap:.2f}"]


def _table_key(result: Result) -> tuple[str, str]:
    return result.point.benchmark, result.point.way


def _line(cells: Sequence[str], has_sizes: bool) -> str:
    first = f"{cells[0]:<10}" if has_sizes else ""
    return first + "".join(f"{cell:>18}" for cell in cells[has_sizes:])
