"""Trials and ranges cut for them, on made-up times."""

from __future__ import annotations

import pytest

from hocket.comm.policy import LARGEST_NBYTES, Range
from hocket.tune.trial import Trial, cut
from hocket.tune.window import Cell

CELL = Cell("all_reduce", "full", 11)  # 1,024 to 2,047 bytes


def trial_of(incumbent: list[float], challenger: list[float]) -> Trial:
    """One with so many seconds in every pair of turns; as few operations as count."""
    trial = Trial(CELL, 1024, "mpi", "shm", len(incumbent))
    for phase in range(2 * len(incumbent)):
        times = {"mpi": incumbent, "shm": challenger}
        carrier = trial.carrier(phase)
        trial.add(phase, {carrier: [times[carrier][phase // 2]] * 3}, True)
    return trial


def test_both_get_as_many_turns_and_every_second_pair_is_turned_round() -> None:
    for number in range(4):
        trial = Trial(CELL, 1024, "mpi", "shm", 6, number)
        carriers = [trial.carrier(phase) for phase in range(12)]
        assert carriers.count("mpi") == carriers.count("shm") == 6
        assert all({*pair} == {"mpi", "shm"} for pair in zip(carriers[::2], carriers[1::2], strict=True))


def test_no_two_trials_share_the_order_of_both_first_pairs() -> None:
    first_turns = {
        tuple(Trial(CELL, 1024, "mpi", "shm", 6, number).carrier(phase) for phase in range(4)) for number in range(4)
    }
    assert len(first_turns) == 4


@pytest.mark.parametrize(
    ("incumbent", "challenger", "is_won", "is_undecided"),
    [
        ([2.0] * 6, [1.0] * 6, True, False),
        ([1.0] * 6, [1.0] * 6, False, False),
        ([1.04] * 6, [1.0] * 6, False, False),  # faster, but not worth a change
        ([2.0] * 5 + [0.9], [1.0] * 6, False, True),  # one of six may be chance
        ([2.0] * 11 + [0.9], [1.0] * 12, True, False),
        ([1.0] * 5, [0.1] * 5, False, False),  # too few turns
        ([1.0] * 6, [1.4] * 6, False, False),
    ],
)
def test_verdict(incumbent: list[float], challenger: list[float], is_won: bool, is_undecided: bool) -> None:
    trial = trial_of(incumbent, challenger)
    assert (trial.is_won, trial.is_undecided) == (is_won, is_undecided)


def test_speed_is_that_of_the_pairs() -> None:
    speed = trial_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0] * 6).speed
    assert speed is not None and (speed.median, speed.low, speed.high) == (3.5, 1.0, 6.0)


def test_a_hopeless_challenger_gets_no_turn_any_more() -> None:
    trial = trial_of([1.0] * 6, [1.6] * 6)
    assert trial.is_hopeless and trial.speed is None and not trial.is_won
    assert {trial.carrier(phase) for phase in range(12)} == {"mpi"}
    assert len(trial.seconds("shm")) == 2


def test_too_few_operations_say_nothing() -> None:
    trial = Trial(CELL, 1024, "mpi", "shm", 6)
    for phase in range(12):
        trial.add(phase, {trial.carrier(phase): [1.0, 1.0]}, True)
    assert trial.speed is None and not trial.is_hopeless and trial.seconds("mpi") == []


def test_cut() -> None:
    whole = [Range(LARGEST_NBYTES, ("shm", "mpi"))]
    assert cut(whole, CELL, ("mpi", "shm"), "why") == [
        Range(1023, ("shm", "mpi")),
        Range(2047, ("mpi", "shm"), "why"),
        Range(LARGEST_NBYTES, ("shm", "mpi")),
    ]
    several = [Range(1500, ("shm",)), Range(2047, ("mpi",)), Range(LARGEST_NBYTES, ("gloo",))]
    assert cut(several, CELL, ("mpi",)) == [
        Range(1023, ("shm",)),
        Range(2047, ("mpi",)),
        Range(LARGEST_NBYTES, ("gloo",)),
    ]
    assert cut(whole, CELL, ("shm", "mpi")) == whole
    empty = Cell("broadcast", "moved", 0)
    assert (empty.least_nbytes, empty.most_nbytes) == (0, 0)
    assert cut(whole, empty, ("mpi",))[0] == Range(0, ("mpi",))
