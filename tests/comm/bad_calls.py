"""Runs a table of invalid calls: checks the error of each on every rank, and that the communicator works after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import hocket as hk
from hocket.errors import HocketError

from ..naming import is_prose, names_value


@dataclass(frozen=True)
class BadCall:
    """`call(comm)` must raise `error` with a message of one line that names all of `values`."""

    call: Callable[[hk.Communicator], object]
    error: type[HocketError]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The error of a call on one rank, and the error of the all_reduce after it."""

    error: BaseException | None
    afterwards: BaseException | None


def bad(call: Callable[[hk.Communicator], object], error: type[HocketError], *values: str) -> BadCall:
    assert not any(map(is_prose, values)), f"there is a sentence among {values}"
    return BadCall(call, error, values)


def run_bad_calls(comm: hk.Communicator, calls: Mapping[str, BadCall]) -> dict[str, Outcome]:
    """Make every call of the table on this rank."""
    return {name: Outcome(attempt(lambda b=b: b.call(comm)), attempt(lambda: works(comm))) for name, b in calls.items()}


def find_faults(bad_call: BadCall, outcomes: list[Outcome]) -> list[str]:
    """Return descriptions of wrong errors, on any rank, and of failures afterwards."""
    faults = []
    for rank, outcome in enumerate(outcomes):
        error, text = outcome.error, str(outcome.error)
        if type(error) is not bad_call.error:
            faults.append(f"rank {rank} raised {error!r} instead of {bad_call.error.__name__}")
        unnamed = [value for value in bad_call.values if not names_value(text, value)]
        faults += [f"rank {rank}: {value!r} is not named in {text!r}" for value in unnamed]
        if not text or "\n" in text:
            faults.append(f"rank {rank}: not one line: {text!r}")
        if outcome.afterwards is not None:
            faults.append(f"rank {rank}: afterwards {outcome.afterwards!r}")
    return faults


def attempt(call: Callable[[], Any]) -> BaseException | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def works(comm: hk.Communicator) -> None:
    for count in (1, 3_000):
        x = np.arange(count) + comm.rank
        comm.all_reduce(x)
        expected = comm.size * np.arange(count) + sum(range(comm.size))
        assert (x == expected).all(), f"all_reduce gives {x[:5]}... instead of {expected[:5]}..."
