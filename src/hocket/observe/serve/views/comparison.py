"""Two runs compared: which operations and regions became slower or faster, beyond their own spread.

As `hocket observe diff` does: the durations of each process are divided into blocks of consecutive ones, a block counts
as the mean of the processes' medians, and intervals are those of the median of all blocks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.comm.policy import format_nbytes
from hocket.observe.analysis.comparison import MOST_BLOCKS, difference_of_blocks
from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_KEYS = ("op", "bits", "library", "algorithm", "size")


@dataclass(frozen=True)
class DifferenceRow:
    """Something that both runs did; see `hocket.observe.RunDifference`."""

    what: str
    before_s: float
    after_s: float
    ratio: float | None
    low: float | None
    high: float | None
    share: float
    verdict: str


@dataclass(frozen=True)
class ComparisonView:
    """The answer: the run after another one, and the runs that it can be compared with."""

    others: list[str]
    before: str
    rows: list[DifferenceRow]


def _in_blocks(rows: ir.Table, keys: tuple[str, ...]) -> ir.Table:
    """The median of each block of each process, and the sum."""
    import ibis

    parts = ibis.window(group_by=[*keys, "process"], order_by="began_s")
    numbered = rows.mutate(
        place=ibis.row_number().over(parts), total=rows.taken.count().over(ibis.window(group_by=[*keys, "process"]))
    )
    longest = numbered.total.max().over(ibis.window(group_by=list(keys)))
    blocks = ibis.least(longest, MOST_BLOCKS)
    # As NumPy's array_split: the first blocks have one more where they are not all of one length.
    length, num_longer = numbered.total // blocks, numbered.total % blocks
    in_longer = num_longer * (length + 1)
    behind = num_longer + (numbered.place - in_longer) // ibis.greatest(length, 1)
    block = ibis.ifelse(numbered.place < in_longer, numbered.place // (length + 1), behind)
    return (
        numbered.mutate(block=block)
        .group_by(*keys, "process", "block")
        .aggregate(middle=lambda each: each.taken.median(), seconds=lambda each: each.taken.sum())
        .group_by(*keys, "block")
        .aggregate(mean=lambda each: each.middle.mean(), seconds=lambda each: each.seconds.sum())
    )


def _operations(table: Tables) -> ir.Table:
    import ibis

    rows, communicators = table("operations"), table("communicators")
    joined = rows.join(communicators.filter(communicators.is_of_program)[["comm", "size"]], "comm")
    bits = ibis.greatest(joined.nbytes, 1).log2().floor().cast("int64")
    chosen = joined.filter(~joined.seconds.isnan())
    return _in_blocks(chosen.mutate(bits=ibis.ifelse(chosen.nbytes > 0, bits, -1), taken=chosen.seconds), _KEYS)


def _regions(table: Tables) -> ir.Table:
    rows = table("regions")
    return _in_blocks(rows.mutate(taken=rows.seconds), ("region",))


def _make(source: ViewSource, window: ViewWindow) -> ComparisonView:
    others = [name for name in source.run_names() if name != source.run.name]
    if not window.other:
        return ComparisonView(others, "", [])
    before, after = _blocks(source.of(window.other)), _blocks(source)
    begin_s, end_s = source.run.extent()
    num_processes = max(len({row["process"] for row in source.ask("ranks", ViewWindow())[0]}), 1)
    duration_s = (end_s - begin_s) * num_processes or 1.0
    found = [
        difference_of_blocks(what, before[what][0], blocks, seconds / duration_s)
        for what, (blocks, seconds) in after.items()
        if what in before
    ]
    rows = [
        DifferenceRow(each.what, each.before_s, each.after_s, each.ratio, each.low, each.high, each.share, each.verdict)
        for each in sorted(found, key=lambda each: -each.share)
    ]
    return ComparisonView(others, window.other, rows)


def _blocks(source: ViewSource) -> dict[str, tuple[list[float], float]]:
    """By what it is, the blocks in the order of time, and the seconds of all."""
    found: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for row in source.rows(_operations):
        found[_text(row)].append((row["block"], row["mean"], row["seconds"]))
    for row in source.rows(_regions):
        found[f"region {row['region']}"].append((row["block"], row["mean"], row["seconds"]))
    return {
        what: ([mean for _, mean, _ in sorted(blocks)], sum(seconds for *_, seconds in blocks))
        for what, blocks in found.items()
    }


def _text(row: dict[str, Any]) -> str:
    bits = row["bits"]
    of_sizes = f" of {format_nbytes(1 << bits)} to {format_nbytes(1 << bits + 1)}" if bits >= 0 else ""
    through = f"{row['library']} {row['algorithm']}".strip()
    return f"{row['op']}{of_sizes} over {through} between {row['size']} ranks"


VIEW = View(
    "comparison", ComparisonView, _make, "This run after another one: what became slower or faster.", is_of_run=False
)
