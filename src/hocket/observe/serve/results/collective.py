"""Schedules of collectives: whether each is proven, its messages, and its time by size on a link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hocket.collectives import verify
from hocket.collectives.schedule import Schedule
from hocket.collectives.serialise import HEAD, from_json
from hocket.collectives.simulate import simulate
from hocket.errors import HocketError, InvalidArgument
from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource, shorten, shorten_all
from hocket.sim import Link

_LATENCY_US, _BANDWIDTH_GB_S = 2.0, 12.5
"""The same as by default in `hocket collectives simulate`."""
_SIZES = tuple(64 * 4**power for power in range(10))  # 64 B to 16 MiB
_MOST_RANKS = 1024
_MOST_ROUNDS = 10_000
_MOST_SLOTS = 1 << 22
"""Of all ranks together; a proof of a reduction notes for each of them which ranks are in it."""
_MOST_PROVEN = 1 << 26
_MOST_CELLS = 64


@dataclass(frozen=True)
class CollectiveRound:
    """A round; "num_blocks" are those that its messages move."""

    number: int
    num_messages: int
    num_blocks: int
    num_reduced: int


@dataclass(frozen=True)
class CollectiveTime:
    """The simulated time of an array of a size."""

    nbytes: int
    seconds: float


@dataclass(frozen=True)
class CollectiveAnswer:
    """The answer. Nothing was measured.

    Args:
        collective, algorithm, parameters: what it is, as the file says.
        num_ranks, num_blocks, num_transfers, ports: of the schedule.
        proof: "proven", "wrong", or "too long to prove".
        problem: what is wrong.
        latency_us, bandwidth_gb_s: of the link between any two ranks, for the times.
        times: by size; none if it cannot be simulated.
        rounds: all rounds.
        sent_blocks: how many blocks each rank sends to each other one, by sender; none of more than 64 ranks.
    """

    collective: str
    algorithm: str
    parameters: dict[str, str]
    num_ranks: int
    num_blocks: int
    num_transfers: int
    ports: int
    proof: str
    problem: str
    latency_us: float
    bandwidth_gb_s: float
    times: list[CollectiveTime]
    rounds: list[CollectiveRound]
    sent_blocks: list[list[int]]


def _load(file: ResultFile) -> Schedule:
    schedule = from_json(file.text, str(file.path))
    limits = {
        "ranks": (schedule.num_ranks, _MOST_RANKS),
        "rounds": (schedule.num_rounds, _MOST_ROUNDS),
        "slots of all ranks": (schedule.num_ranks * schedule.num_slots, _MOST_SLOTS),
        "blocks": (schedule.num_blocks, _MOST_SLOTS),
    }
    for what, (number, most) in limits.items():
        if number > most:
            raise InvalidArgument(f"{file.path} has {number} {what}; the page shows at most {most}")
    return schedule


def _make(source: ResultSource) -> CollectiveAnswer:
    schedule: Schedule = source.value
    proof, problem = _proof(schedule)
    link = Link.of(_LATENCY_US, _BANDWIDTH_GB_S)
    times = []
    try:
        times = [CollectiveTime(nbytes, simulate(schedule, nbytes, link).seconds) for nbytes in _SIZES]
    except HocketError as error:
        problem = problem or str(error)
    return CollectiveAnswer(
        schedule.collective, shorten(schedule.algorithm), shorten_all(schedule.parameters),
        schedule.num_ranks, schedule.num_blocks, len(schedule), schedule.ports, proof, problem, _LATENCY_US,
        _BANDWIDTH_GB_S, times, _rounds(schedule), _sent_blocks(schedule),
    )  # fmt: skip


def _proof(schedule: Schedule) -> tuple[str, str]:
    if schedule.num_ranks**2 * schedule.num_slots > _MOST_PROVEN:
        return "too long to prove", ""
    try:
        verify(schedule)
    except HocketError as error:
        return "wrong", str(error)
    return "proven", ""


def _rounds(schedule: Schedule) -> list[CollectiveRound]:
    remote = schedule.is_remote
    size = schedule.num_rounds
    starts = schedule.message_starts
    messages = np.bincount(schedule.rounds[starts[remote[starts]]], minlength=size)
    blocks = np.bincount(schedule.rounds[remote], minlength=size)
    reduced = np.bincount(schedule.rounds[remote & schedule.reduces], minlength=size)
    columns = zip(messages.tolist(), blocks.tolist(), reduced.tolist(), strict=True)
    return [CollectiveRound(number, *each) for number, each in enumerate(columns)]


def _sent_blocks(schedule: Schedule) -> list[list[int]]:
    size = schedule.num_ranks
    if size > _MOST_CELLS:
        return []
    remote = schedule.is_remote
    ends = schedule.sources[remote].astype(np.int64) * size + schedule.destinations[remote]
    cells: list[list[int]] = np.bincount(ends, minlength=size * size).reshape(size, size).tolist()
    return cells


RESULT = ResultKind(
    "collective", "the schedule of a collective", "hocket collectives export", HEAD, CollectiveAnswer, _load, _make
)  # fmt: skip
