"""Timelines as text: a line a rank, a letter and a number an action, a dot where a rank is idle."""

from __future__ import annotations

from hocket.pipeline.kind import kinds
from hocket.pipeline.timeline import PipelineTimeline


def draw_text(timeline: PipelineTimeline, width: int = 100, *, color: bool = False) -> str:
    """Return a timeline as text.

    Args:
        timeline: simulated or measured.
        width: characters of a line.
        color: paint actions by their kind, for terminals that can.
    """
    schedule = timeline.schedule
    names = [f"{rank} " for rank in range(schedule.num_ranks)]
    margin = max(len(name) for name in names)
    columns = max(10, width - margin)
    per_s = columns / (timeline.makespan_s or 1.0)
    lines = []
    for rank, name in enumerate(names):
        cells = ["·"] * columns
        paint = [0] * columns
        first, last = (int(each) for each in schedule.columns.starts[rank : rank + 2])
        for row in range(first, last):
            action = schedule.action(row)
            begin, end = (round(float(each[row]) * per_s) for each in (timeline.begin_s, timeline.end_s))
            if end <= begin or kinds()[action.kind].resource != "rank":
                continue
            if action.with_previous:
                begin = (begin + end) // 2  # the second half shows what overlaps with the first
            number = "" if action.micro_batch < 0 else str(action.micro_batch)
            word = f"{action.kind[0]}{number}".ljust(end - begin)[: end - begin]
            if len(word) < 1 + len(number):
                word = word[0].ljust(end - begin)
            cells[begin:end] = list(word.replace(" ", "─"))
            paint[begin:end] = [kinds()[action.kind].terminal_color] * (end - begin)
        lines.append(name.rjust(margin) + (_painted(cells, paint) if color else "".join(cells)))
    return "\n".join(lines)


def _painted(cells: list[str], paint: list[int]) -> str:
    out, last = [], 0
    for cell, code in zip(cells, paint, strict=True):
        if code != last:
            out.append(f"\x1b[30;{code}m" if code else "\x1b[0m")
        last = code
        out.append(" " if code and cell == "─" else cell)
    return "".join(out) + ("\x1b[0m" if last else "")
