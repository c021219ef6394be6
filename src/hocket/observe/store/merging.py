"""Small segments that follow each other become one: a run that goes on has few files to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import time

from hocket.observe.store.rollups import level_groups, merged
from hocket.observe.store.segments import SEGMENT_ROWS, Segment, joined_ranges, read_segments, write_part

_LEAST_MERGED = 8
"""So many small segments are merged, or fewer if they are old."""
_OLD_S = 60.0
_MERGED_S = 3600.0
"""Only rows of so long a time are merged: a segment is kept or removed as a whole."""
_MERGED_NBYTES = 256 << 20


def small_neighbours(segments: Sequence[Segment]) -> list[Segment]:
    """Return small segments that follow each other, if they are many or old enough to be merged.

    Args:
        segments: of one table, by number.
    """
    group: list[Segment] = []
    for each in [*segments, None]:
        is_full = (
            sum(one.num_rows for one in group) >= SEGMENT_ROWS
            or sum(one.nbytes for one in group) >= _MERGED_NBYTES
            or (each is not None and bool(group) and each.written_s - group[0].since_s > _MERGED_S)
        )
        is_small = each is not None and each.num_rows < SEGMENT_ROWS // 2 and each.nbytes < _MERGED_NBYTES // 2
        if is_full or not is_small:
            if len(group) >= _LEAST_MERGED or (len(group) > 1 and time() - group[-1].written_s > _OLD_S):
                return group
            group = []
        if each is not None and is_small:
            group.append(each)
    return []


def merge_segments(folder: Path, chosen: Sequence[Segment], *, is_rollup: bool) -> Segment:
    """Write one segment with all rows of others, whose files stay.

    Args:
        folder: of the table.
        chosen: from `small_neighbours`.
        is_rollup: whether rows of the same span become one.

    Raises:
        OSError: it cannot be written.
        RecorderError: a segment is damaged; names it.
    """
    rows = read_segments(chosen)
    rows = merged(rows) if is_rollup else rows.unify_dictionaries()
    ranges = joined_ranges(chosen)
    groups = level_groups(rows) if is_rollup else ()
    part = write_part(folder, chosen[0].first, chosen[-1].last, rows, ranges, merged_of=chosen, groups=groups)
    return part.publish()
