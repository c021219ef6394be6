"""Bytes between ranks: against the messages of a program, and against the tables of schedules."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hocket.collectives import find_algorithm
from hocket.errors import InvalidArgument
from hocket.observe import communication_matrix, open_run, record_run, totals_of

from ..naming import raises
from .fabricated_run import KINDS, FakeRank, fabricate, with_histograms

pytestmark = pytest.mark.timeout(120)
_PROGRAM = """
import numpy as np
import hocket as hk
with hk.init() as comm:
    for other in range(comm.size):
        if other != comm.rank:
            work = comm.isend(np.ones(100 * comm.rank + other + 1, np.uint8), other)
            comm.recv(np.empty(100 * other + comm.rank + 1, np.uint8), other)
            work.wait()
    comm.all_reduce(np.ones(4096, np.float32), algorithm="ring")
    if comm.rank in (1, 3):
        comm.group([1, 3]).broadcast(np.ones(500, np.uint8), 1, algorithm="binomial")
"""


def _matrix_of(schedule: str, collective: str, num_ranks: int, nbytes: int) -> np.ndarray:
    table = find_algorithm(collective, schedule).schedule(num_ranks)
    found = np.zeros((num_ranks, num_ranks))
    for source, target in zip(table.sources, table.destinations, strict=True):
        if source != target:
            found[source, target] += nbytes / table.num_blocks
    return found


def test_messages_and_transfers_of_a_program(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    record_run([sys.executable, "-m", "hocket.cli", "run", "-n", "4", str(script)], tmp_path / "run")
    found = communication_matrix(totals_of(open_run(tmp_path / "run")))
    rank = np.arange(4)
    expected = (100 * rank[:, None] + rank[None, :] + 1) * (1 - np.eye(4, dtype=np.int64))
    expected = expected + _matrix_of("ring", "all_reduce", 4, 4 * 4096)
    expected[3, 1] += 500  # the root of the group is its second member
    assert found.sent_nbytes.tolist() == expected.tolist()
    assert found.unknown_nbytes == 0
    ring = find_algorithm("all_reduce", "ring").schedule(4)
    rounds = {
        number for number, *pair in zip(ring.rounds, ring.sources, ring.destinations, strict=True) if pair == [0, 1]
    }
    assert found.num_messages[0].tolist() == [0, 1 + len(rounds), 1, found.num_messages[0, 3]]


def _with_totals(num_ranks: int, entry: Mapping[str, object], num_own: int, members: str = "") -> object:
    ranks = [FakeRank(rank, communicators={1: ("world", members, rank)}) for rank in range(num_ranks)]
    run = fabricate(ranks)
    base = {"comm": 1, "peer": -1, "is_used": 1, "count": 1, "ticks": 1, "least_ticks": 1, "most_ticks": 1}
    return replace(
        run, processes=tuple(with_histograms(each, [{**base, **entry}], num_own) for each in run.processes)
    )  # fmt: skip


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("op", "schedule"),
    [("all_reduce", "ring"), ("broadcast", "binomial"), ("reduce", "binomial"), ("reduce_scatter", "ring")],
)
def test_modelled_bytes_are_those_of_a_schedule(op: str, schedule: str, num_ranks: int) -> None:
    root = num_ranks - 1 if op in ("broadcast", "reduce") else -1
    nbytes = 840 * num_ranks
    entry = {"kind": KINDS[op], "nbytes": nbytes, "peer": root, "size_class": 10}
    found = communication_matrix(totals_of(_with_totals(num_ranks, entry, 0)))  # type: ignore[arg-type]
    expected = _matrix_of(schedule, op, num_ranks, nbytes)
    if root > 0:
        expected = np.roll(expected, (root, root), (0, 1))
    assert not found.sent_nbytes.any()
    assert found.modelled_nbytes == pytest.approx(expected)


def test_a_message_to_another_job_has_no_cell() -> None:
    entry = {"kind": KINDS["send"], "nbytes": 10, "peer": 5, "size_class": 4}
    found = communication_matrix(totals_of(_with_totals(2, entry, 0)))  # type: ignore[arg-type]
    assert found.unknown_nbytes == 20 and not found.sent_nbytes.any()


def test_a_job_that_the_run_does_not_have() -> None:
    with raises(InvalidArgument, names=("7",)):
        communication_matrix(totals_of(fabricate([FakeRank(0)])), 7)
