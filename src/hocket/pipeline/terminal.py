"""Draw timelines as text: one line per rank, a letter and a number per action, dots for idle time."""

from __future__ import annotations

from hocket.pipeline.kind import kinds
from hocket.pipeline.timeline import PipelineTimeline


def draw_text(timeline: PipelineTimeline, width: int = 100, *, color: bool = False) -> str:
    """Draw a timeline as text.

    Args:
        timeline: simulated or measured timeline.
        width: characters per line.
        color: whether to colour actions by kind, with ANSI escape sequences.

    Returns:
        One line per rank.

    Examples:
        >>> timeline = hk.pipeline.simulate(hk.pipeline.build("1f1b", 2, 4))
        >>> print(hk.pipeline.draw_text(timeline, width=40))
        0 F0─F1·····B0───F2─B1───F3B2───···B3───
        1 ···F0B0───F1─B1───F2B2───F3─B3───·····
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
                begin = (begin + end) // 2  # an overlapping action gets the second half of the bar
            number = "" if action.micro_batch < 0 else str(action.micro_batch)
            label = f"{action.kind[0]}{number}".ljust(end - begin)[: end - begin]
            if len(label) < 1 + len(number):
                label = label[0].ljust(end - begin)
            cells[begin:end] = list(label.replace(" ", "─"))
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
