"""Prove that a schedule implements its collective, by running it on sets of ranks instead of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.schedule import Schedule
from hocket.collectives.semantics import Held, Semantics, semantics_of
from hocket.errors import InvalidSchedule


def verify(schedule: Schedule) -> None:
    """Prove that a schedule implements its collective.

    The proof checks that every transfer moves a block that its source holds at this time; that no two transfers of a
    round write the same slot; that no rank sends or receives more messages per round than it has ports; that each block
    is delivered to its final slot only once; that a reduction includes the part of every rank exactly once; and that
    every rank ends with the result of the collective.

    Raises:
        InvalidSchedule: the schedule is wrong; the error names the first wrong transfer, or rank and block.

    Examples:
        >>> from hocket.collectives import Transfers, make_schedule, verify
        >>> verify(make_schedule("broadcast", 3, 1, [Transfers(0, 1, 0), Transfers(1, 2, 0)]))
        >>> verify(make_schedule("broadcast", 3, 1, [Transfers(0, 1, 0)]))
        Traceback (most recent call last):
        hocket.errors.InvalidSchedule: at the end rank 2 has nothing in slot 0 instead of block 0
    """
    semantics = semantics_of(schedule.collective)
    _check_slots(schedule, semantics)
    _check_ports(schedule)
    state = _State(schedule, semantics)
    offsets = schedule.round_offsets
    for number in range(schedule.num_rounds):
        state.run(slice(offsets[number], offsets[number + 1]))
    state.check_end()


def _check_slots(schedule: Schedule, semantics: Semantics) -> None:
    least = semantics.num_array_slots(schedule)
    if schedule.num_slots < least:
        raise InvalidSchedule(
            f"{schedule.collective} of {schedule.num_blocks} blocks needs {least} slots, got {schedule.num_slots}"
        )


def _check_ports(schedule: Schedule) -> None:
    starts = schedule.message_starts
    starts = starts[schedule.is_remote[starts]]
    for verb, ranks in (("sends", schedule.sources), ("receives", schedule.destinations)):
        keys, counts = np.unique(
            schedule.rounds[starts].astype(np.int64) * schedule.num_ranks + ranks[starts], return_counts=True
        )
        wrong = np.flatnonzero(counts > schedule.ports)
        if len(wrong):
            number, rank = divmod(int(keys[wrong[0]]), schedule.num_ranks)
            raise InvalidSchedule(
                f"round {number}: rank {rank} {verb} {counts[wrong[0]]} messages, but has only {schedule.ports} ports"
            )


class _State:
    """The block in every slot, and the set of ranks whose parts are reduced into it."""

    def __init__(self, schedule: Schedule, semantics: Semantics) -> None:
        self.schedule = schedule
        self.semantics = semantics
        num_ranks, num_slots = schedule.num_ranks, schedule.num_slots
        self.held: Held = semantics.begins(schedule).reshape(-1)
        self.ends: Held = semantics.ends(schedule).reshape(-1)
        self.words = (num_ranks + 63) // 64 if semantics.reduces else 0
        self.own = np.zeros((num_ranks, self.words), np.uint64)  # sets with a single rank
        if self.words:
            ranks = np.arange(num_ranks)
            self.own[ranks, ranks // 64] = np.uint64(1) << (ranks % 64).astype(np.uint64)
        self.parts = np.repeat(self.own, num_slots, axis=0)
        self.parts[self.held < 0] = 0
        self.is_settled = (self.ends >= 0) & (self.held == self.ends) if not semantics.reduces else self.ends < -1

    def run(self, rows: slice) -> None:
        schedule = self.schedule
        num_slots = schedule.num_slots
        blocks = schedule.blocks[rows]
        reduces = schedule.reduces[rows]
        read = schedule.sources[rows].astype(np.int64) * num_slots + schedule.source_slots[rows]
        written = schedule.destinations[rows].astype(np.int64) * num_slots + schedule.destination_slots[rows]
        self._refuse(rows, self.held[read] != blocks, "the source does not hold that block: it holds {}", read)
        if len(np.unique(written)) != len(written):
            repeated = np.ones(len(written), bool)
            repeated[np.unique(written, return_index=True)[1]] = False
            self._refuse(rows, repeated, "another transfer of the round writes the same slot", written)
        if reduces.any():
            if not self.semantics.reduces:
                self._refuse(rows, reduces, f"{schedule.collective} must not reduce", written)
            self._refuse(
                rows, reduces & (self.held[written] != blocks), "the destination holds another block: {}", written
            )
        if self.words:
            sets = self.parts[read]
            if not self.semantics.may_repeat and reduces.any():
                twice = reduces & (self.parts[written] & sets).any(axis=1)
                self._refuse(rows, twice, "a rank's part is counted twice", written)
            self.parts[written] = np.where(reduces[:, None], self.parts[written] | sets, sets)
        else:
            self._refuse(rows, self.is_settled[written], "the slot has its final block already", written)
            self.is_settled[written] = self.ends[written] == blocks
        self.held[written] = blocks

    def _refuse(self, rows: slice, wrong: NDArray[np.bool_], reason: str, places: NDArray[np.int64]) -> None:
        wrong_rows = np.flatnonzero(wrong)
        if not len(wrong_rows):
            return
        index = int(wrong_rows[0])
        row = rows.start + index
        schedule = self.schedule
        holds = int(self.held[places[index]])
        raise InvalidSchedule(
            f"round {schedule.rounds[row]}: block {schedule.blocks[row]} from rank {schedule.sources[row]}, slot "
            f"{schedule.source_slots[row]}, to rank {schedule.destinations[row]}, slot "
            f"{schedule.destination_slots[row]}: {reason.format('none' if holds < 0 else f'block {holds}')}"
        )

    def check_end(self) -> None:
        schedule = self.schedule
        num_slots = schedule.num_slots
        missing = np.flatnonzero((self.ends >= 0) & (self.held != self.ends))
        if len(missing):
            rank, slot = divmod(int(missing[0]), num_slots)
            holds = int(self.held[missing[0]])
            raise InvalidSchedule(
                f"at the end rank {rank} has {'nothing' if holds < 0 else f'block {holds}'} in slot {slot} instead of "
                f"block {self.ends[missing[0]]}"
            )
        if not self.words:
            return
        expected = _as_words(self.semantics.contributors(schedule.num_ranks), self.words)
        final = np.flatnonzero(self.ends >= 0)
        wrong = np.flatnonzero((self.parts[final] != expected[final // num_slots]).any(axis=1))
        if not len(wrong):
            return
        place = int(final[wrong[0]])
        rank, slot = divmod(place, num_slots)
        included, required = _ranks_in(self.parts[place]), _ranks_in(expected[rank])
        lacking, excess = sorted(required - included), sorted(included - required)
        raise InvalidSchedule(
            f"at the end rank {rank} has block {self.ends[place]}"
            + (f" without the part of rank {lacking[0]}" if lacking else f" with the part of rank {excess[0]}")
        )


def _as_words(sets: NDArray[np.bool_], num_words: int) -> NDArray[np.uint64]:
    padded = np.zeros((len(sets), num_words * 64), bool)
    padded[:, : sets.shape[1]] = sets
    packed: NDArray[Any] = np.packbits(padded, axis=1, bitorder="little").view("<u8")
    return packed.astype(np.uint64)


def _ranks_in(words: NDArray[np.uint64]) -> set[int]:
    return {64 * index + bit for index, word in enumerate(words.tolist()) for bit in range(64) if word >> bit & 1}
