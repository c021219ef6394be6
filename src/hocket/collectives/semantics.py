"""What each collective begins with and has to end with, in blocks and slots.

============== ================================= ============================== =========================
collective     blocks                            slots in front of the scratch  has to end with
============== ================================= ============================== =========================
broadcast      parts of the array                block b in slot b              every block on all ranks
reduce         parts of the array                block b in slot b              all ranks' on rank 0
all_reduce     parts of the array                block b in slot b              all ranks' on all ranks
scan           parts of the array                block b in slot b              ranks 0..r's on rank r
all_gather     as many parts of every rank's     block b in slot b              every block on all ranks
reduce_scatter as many parts for every rank      block b in slot b              all ranks' of its own parts
all_to_all     (from, to), numbered from * P + to P of the input, P of the output those for it
barrier        nothing                           slot 0                         having heard of all ranks
============== ================================= ============================== =========================
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
    """What a collective is.

    Args:
        reduces: whether blocks are reduced over ranks.
        begins, ends: which block is in which slot of which rank; -1 where it does not matter.
        contributors: [rank, rank]: whose parts rank r has to end with.
        may_repeat: a rank's part may be counted twice.
        num_array_slots: those that are not scratch.
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
    """Blocks that belong to every rank, of all_gather and reduce_scatter."""
    parts, left = divmod(schedule.num_blocks, schedule.num_ranks)
    if left or not parts:
        raise InvalidSchedule(
            f"{schedule.collective} between {schedule.num_ranks} ranks has as many blocks of every rank, "
            f"not {schedule.num_blocks} in all"
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
    """Return what a collective is.

    Raises:
        InvalidSchedule: there is no such collective.
    """
    try:
        return SEMANTICS[collective]
    except KeyError:
        raise InvalidSchedule(unknown("collective", collective, SEMANTICS)) from None
