"""The blocks and slots that each collective starts with and must end with.

============== ================================= ============================== ===============================
collective     blocks                            slots before the scratch       final content
============== ================================= ============================== ===============================
broadcast      parts of the array                block b in slot b              every block on all ranks
reduce         parts of the array                block b in slot b              sum over all ranks on rank 0
all_reduce     parts of the array                block b in slot b              sum over all ranks on all ranks
scan           parts of the array                block b in slot b              sum over ranks 0..r on rank r
all_gather     equally many parts of each rank   block b in slot b              every block on all ranks
reduce_scatter equally many parts for each rank  block b in slot b              sum over all ranks of own parts
all_to_all     (from, to), numbered from * P + to P of the input, P of the output blocks for this rank
barrier        none                              slot 0                         contributions of all ranks
============== ================================= ============================== ===============================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.schedule import Schedule
from hocket.errors import InvalidSchedule
from hocket.suggestions import unknown

Held: TypeAlias = NDArray[np.int32]  # [rank, slot]: a block, or -1


@dataclass(frozen=True)
class Semantics:
    """The definition of a collective.

    Args:
        reduces: whether blocks are reduced over ranks.
        begins, ends: block in each slot of each rank at the start and at the end; -1 if irrelevant.
        contributors: [rank, rank]: whether the result of the first rank includes the part of the second.
        may_repeat: whether the part of a rank may be included several times.
        num_array_slots: number of slots that are not scratch.
    """

    reduces: bool
    begins: Callable[[Schedule], Held]
    ends: Callable[[Schedule], Held]
    contributors: Callable[[int], NDArray[np.bool_]] = lambda n: np.ones((n, n), bool)
    may_repeat: bool = False
    num_array_slots: Callable[[Schedule], int] = lambda schedule: schedule.num_blocks


def _nothing(schedule: Schedule) -> Held:
    return np.full((schedule.num_ranks, schedule.num_slots), -1, np.int32)


def _on_all(schedule: Schedule) -> Held:
    held = _nothing(schedule)
    held[:, : schedule.num_blocks] = np.arange(schedule.num_blocks)
    return held


def _on_root(schedule: Schedule) -> Held:
    held = _nothing(schedule)
    held[0, : schedule.num_blocks] = np.arange(schedule.num_blocks)
    return held


def _own(schedule: Schedule) -> Held:
    parts = parts_per_rank(schedule)
    held = _nothing(schedule)
    blocks = np.arange(schedule.num_blocks)
    held[blocks // parts, blocks] = blocks
    return held


def _to_others(schedule: Schedule) -> Held:
    n = schedule.num_ranks
    held = _nothing(schedule)
    held[:, :n] = np.arange(n)[:, None] * n + np.arange(n)
    return held


def _from_others(schedule: Schedule) -> Held:
    n = schedule.num_ranks
    held = _nothing(schedule)
    held[:, n : 2 * n] = np.arange(n)[:, None] + n * np.arange(n)
    return held


def parts_per_rank(schedule: Schedule) -> int:
    """Return the number of blocks per rank of all_gather or reduce_scatter."""
    parts, rest = divmod(schedule.num_blocks, schedule.num_ranks)
    if rest or not parts:
        raise InvalidSchedule(
            f"{schedule.collective} on {schedule.num_ranks} ranks needs equally many blocks per rank, got "
            f"{schedule.num_blocks} in total"
        )
    return parts


SEMANTICS = {
    "broadcast": Semantics(False, _on_root, _on_all),
    "reduce": Semantics(True, _on_all, _on_root),
    "all_reduce": Semantics(True, _on_all, _on_all),
    "scan": Semantics(True, _on_all, _on_all, lambda n: np.tri(n, dtype=bool)),
    "all_gather": Semantics(False, _own, _on_all),
    "reduce_scatter": Semantics(True, _on_all, _own),
    "all_to_all": Semantics(False, _to_others, _from_others, num_array_slots=lambda schedule: 2 * schedule.num_ranks),
    "barrier": Semantics(True, _on_all, _on_all, may_repeat=True),
}


def semantics_of(collective: str) -> Semantics:
    """Return the definition of a collective.

    Raises:
        InvalidSchedule: the collective is unknown.
    """
    try:
        return SEMANTICS[collective]
    except KeyError:
        raise InvalidSchedule(unknown("collective", collective, SEMANTICS)) from None
