"""Members that disagree: `CollectiveMismatch` on all, with both call sites, and the communicator stays usable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import hocket as hk
from hocket.errors import CollectiveMismatch

from .bad_calls import Outcome, attempt, works

Call = Callable[[hk.Communicator], object]


@dataclass(frozen=True)
class Disagreement:
    """Rank 1 makes one call, all others make the other; `words` name the two calls."""

    of_rank_1: Call
    of_others: Call
    words: tuple[str, str]


def _reduce(count: int, dtype: str = "f4", op: str = "sum") -> Call:
    return lambda c: c.all_reduce(np.zeros(count, dtype), op)  # type: ignore[arg-type]


_KINDS: dict[str, Call] = {
    "barrier": lambda c: c.barrier(),
    "all_reduce": lambda c: c.all_reduce(np.zeros(4, np.uint8)),
    "reduce": lambda c: c.reduce(np.zeros(4, np.uint8), 0),
    "broadcast": lambda c: c.broadcast(np.zeros(4, np.uint8), 0),
    "all_gather": lambda c: c.all_gather(np.zeros(4 * c.size, np.uint8), np.zeros(4, np.uint8)),
    "reduce_scatter": lambda c: c.reduce_scatter(np.zeros(4, np.uint8), np.zeros(4 * c.size, np.uint8)),
    "all_to_all": lambda c: c.all_to_all(np.zeros(4 * c.size, np.uint8), np.zeros(4 * c.size, np.uint8)),
    "split": lambda c: c.split(0),
    "dup": lambda c: c.dup(),
}
_CASES = {
    **{
        f"{one} and {other}": Disagreement(_KINDS[one], _KINDS[other], (one, other))
        for one in _KINDS
        for other in _KINDS
        if one < other
    },
    "short sizes": Disagreement(lambda c: _reduce(3)(c), _reduce(4), ("12 bytes", "16 bytes")),
    "nothing and something": Disagreement(_reduce(0), lambda c: _reduce(1)(c), (" 0 bytes", " 4 bytes")),
    "inline and eager": Disagreement(_reduce(12), lambda c: _reduce(13)(c), ("48 bytes", "52 bytes")),
    "eager and staged": Disagreement(_reduce(1_024), lambda c: _reduce(1_025)(c), ("4096 bytes", "4100 bytes")),
    "staged sizes": Disagreement(_reduce(900_000), lambda c: _reduce(900_001)(c), ("3600000 bytes", "3600004 bytes")),
    "short and very long": Disagreement(_reduce(1), lambda c: _reduce(900_001)(c), (" 4 bytes", "3600004 bytes")),
    "types": Disagreement(_reduce(4, "i4"), lambda c: _reduce(4, "f4")(c), ("16 bytes int32", "16 bytes float32")),
    "reductions": Disagreement(_reduce(4), lambda c: _reduce(4, op="max")(c), ("all_reduce(sum)", "all_reduce(max)")),
    "reductions of reduce_scatter": Disagreement(
        lambda c: c.reduce_scatter(np.zeros(4), np.zeros(4 * c.size), "min"),
        lambda c: c.reduce_scatter(np.zeros(4), np.zeros(4 * c.size), "avg"),
        ("reduce_scatter(min)", "reduce_scatter(avg)"),
    ),
    "roots of broadcast": Disagreement(
        lambda c: c.broadcast(np.zeros(9_000), 1),
        lambda c: c.broadcast(np.zeros(9_000), 0),
        ("broadcast with root 1", "broadcast with root 0"),
    ),
    "roots of reduce": Disagreement(
        lambda c: c.reduce(np.zeros(4), 1),
        lambda c: c.reduce(np.zeros(4), 0),
        ("reduce(sum) with root 1", "reduce(sum) with root 0"),
    ),
    "asynchronous here, blocking there": Disagreement(
        lambda c: c.all_reduce(np.zeros(4), async_op=True).wait(),
        lambda c: c.all_reduce(np.zeros(5)),
        ("32 bytes", "40 bytes"),
    ),
}


def _run(comm: hk.Communicator) -> dict[str, Outcome]:
    return {
        name: Outcome(
            attempt(lambda case=case: (case.of_rank_1 if comm.rank == 1 else case.of_others)(comm)),
            attempt(lambda: works(comm)),
        )
        for name, case in _CASES.items()
    }


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Outcome]]:
    return hk.spawn(_run, 3, timeout=60)


@pytest.mark.timeout(70)
@pytest.mark.parametrize("name", _CASES)
def test_mismatch(outcomes: list[dict[str, Outcome]], name: str) -> None:
    of_rank_1, of_others = _CASES[name].words
    messages = set()
    for rank, outcome in enumerate(of_rank[name] for of_rank in outcomes):
        assert type(outcome.error) is CollectiveMismatch, f"rank {rank} raised {outcome.error!r}"
        assert outcome.afterwards is None, f"rank {rank}: afterwards {outcome.afterwards!r}"
        messages.add(str(outcome.error))
    assert len(messages) == 1, messages
    message = messages.pop()
    assert "\n" not in message
    number, differing, calls = message.split(": ", 2)  # "operation number 7", "the ranks differ in the root", ...
    assert number.startswith("operation number ") and " differ in the " in differing
    others, one = sorted(calls.split("; "))[::-1]  # "ranks 0 and 2: ...", "rank 1: ..."
    assert one.startswith("rank 1: ") and of_rank_1 in one, message
    assert others.startswith("ranks 0 and 2: ") and of_others in others, message
    for part in (one, others):
        file, line = part.rsplit(" at ", 1)[1].rsplit(":", 1)
        assert file == __file__ and int(line) > 1, message


def _run_sites(comm: hk.Communicator) -> tuple[str, list[int]]:
    lines = [_run_sites.__code__.co_firstlineno + step for step in (3, 5)]
    if comm.rank:
        error = attempt(lambda: comm.all_reduce(np.zeros(1)))
    else:
        error = attempt(lambda: comm.all_reduce(np.zeros(2)))
    return str(error), lines


@pytest.mark.timeout(40)
def test_message_names_both_call_sites() -> None:
    for message, lines in hk.spawn(_run_sites, 2, timeout=30):
        for rank, line in zip((1, 0), lines, strict=True):
            assert (
                f"rank {rank}: all_reduce(sum) of {8 * (2 - rank)} bytes float64 ({2 - rank},) at {__file__}:{line}"
                in message
            )


def _run_order(comm: hk.Communicator) -> list[str | None]:
    """Two operations in different orders: both fail, at their places, and the next one works."""
    x, y = np.ones(4), np.ones(6)
    if comm.rank == 0:
        works_ = [comm.all_reduce(x, async_op=True), comm.broadcast(y, 0, async_op=True)]
    else:
        works_ = [comm.broadcast(y, 0, async_op=True), comm.all_reduce(x, async_op=True)]
    last = np.ones(3)
    comm.all_reduce(last)
    assert last.tolist() == [comm.size] * 3
    errors = []
    for work in works_:
        assert work.done
        with pytest.raises(CollectiveMismatch) as raised:
            work.wait()
        assert str(work.exception()) == str(raised.value)
        errors.append(f"number {work.seq}" if f"number {work.seq}:" in str(raised.value) else None)
    return errors


@pytest.mark.timeout(40)
def test_other_order() -> None:
    assert hk.spawn(_run_order, 4, timeout=30) == [["number 1", "number 2"]] * 4


def _run_many(comm: hk.Communicator) -> int:
    """Repeated mismatches raise one error each, and nothing else."""
    failed = 0
    for turn in range(200):
        count = 1 + (comm.rank if turn % 2 else 0) + turn * 11
        failed += isinstance(attempt(lambda count=count: _reduce(count)(comm)), CollectiveMismatch)
    works(comm)
    return failed


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_ranks", [2, 8])
def test_mismatches_in_a_row(num_ranks: int) -> None:
    assert hk.spawn(_run_many, num_ranks, timeout=50) == [100] * num_ranks


def _run_split_after(comm: hk.Communicator) -> list[int]:
    """A split or dup that only some members called is not counted on any member."""
    sizes = []
    for make in (lambda: comm.split(0), lambda: comm.dup()):
        error = attempt(make if comm.rank == 0 else comm.barrier)
        assert isinstance(error, CollectiveMismatch), error
        child = make()
        assert child is not None
        works(child)
        sizes.append(child.size)
    return sizes


@pytest.mark.timeout(40)
def test_split_after_a_mismatch_in_split() -> None:
    assert hk.spawn(_run_split_after, 2, timeout=15) == [[2, 2]] * 2
