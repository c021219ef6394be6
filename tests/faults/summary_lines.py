"""Which ranks a line of a job's summary is about: "ranks 0-2, 4: PeerFailure: rank 5 died"."""

from __future__ import annotations

import re

_HEAD = re.compile(r"ranks? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)(?=:| )")


def ranks_of(line: str) -> list[int]:
    """Return the ranks that a line begins with; none where it is no line of a summary."""
    head = _HEAD.match(line)
    if head is None:
        return []
    spans = [[int(end) for end in part.split("-")] for part in head[1].split(", ")]
    return [rank for span in spans for rank in range(span[0], span[-1] + 1)]
