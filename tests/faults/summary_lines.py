"""Parse the ranks of a line of a job's summary: "ranks 0-2, 4: PeerFailure: rank 5 died"."""

from __future__ import annotations

import re

_HEAD = re.compile(r"ranks? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)(?=:| )")


def ranks_of(line: str) -> list[int]:
    """Return the ranks at the start of a line; empty for other lines."""
    head = _HEAD.match(line)
    if head is None:
        return []
    spans = [[int(end) for end in part.split("-")] for part in head[1].split(", ")]
    return [rank for span in spans for rank in range(span[0], span[-1] + 1)]
