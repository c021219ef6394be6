"""The recorded transfers of schedules: equal to the tables of the schedules, and in flight while a peer hangs."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket import _native
from hocket.collectives.blocks import sizes_of
from hocket.collectives.schedule import Schedule
from hocket.collectives.source import parse_algorithm
from hocket.errors import RecorderError
from hocket.observe import SavedProcess, activity_of, open_run, record_run
from hocket.trace import RecorderSnapshot, find_recorders

from ..load import scaled
from ..program import hocket

pytestmark = pytest.mark.timeout(180)
NUM_RANKS = 4
SEND, RECEIVE, COPY, REDUCE = range(4)
_TRANSFER = 1  # the layer, in histograms

# Every algorithm there is for four ranks, with arrays that divide evenly and others that do not.
_PROGRAM = """
import numpy as np
import hocket as hk
from hocket.collectives import algorithms

with hk.init(backends=["shm"]) as comm:
    size = comm.size
    for number, algorithm in enumerate(algorithms()):
        if algorithm.restriction(size) is not None:
            continue
        how = {"backend": "shm", "algorithm": algorithm.name}
        for count in (6000, 17 + number):
            x, wide = np.ones(count, np.float32), np.ones((size, count), np.float32)
            call = getattr(comm, algorithm.collective)
            match algorithm.collective:
                case "barrier":
                    call(**how)
                case "broadcast" | "reduce":
                    call(x, number % size, **how)
                case "all_gather":
                    call(wide, x, **how)
                case "reduce_scatter":
                    call(x, wide, **how)
                case "all_to_all":
                    call(np.empty_like(wide), wide, **how)
                case _:
                    call(x, **how)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[SavedProcess]:
    """The ranks of one job, by rank."""
    folder = tmp_path_factory.mktemp("transfers")
    (folder / "script.py").write_text(_PROGRAM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_RECORDER_BUDGET", "all")
        command = [sys.executable, "-m", "hocket.cli", "run", "-n", str(NUM_RANKS), str(folder / "script.py")]
        assert record_run(command, folder / "run", layers=["comm"]).exit_code == 0
    processes = open_run(folder / "run").processes
    found = [each for each in processes if len(each.events["transfers"])]
    assert [each.snapshot.owner.rank for each in found] == list(range(NUM_RANKS))
    assert not any(each.lost.get("transfers") for each in found)
    return found


def _world(snapshot: RecorderSnapshot) -> int:
    (found,) = {each.id for each in snapshot.communicators.values() if each.text == "world"}
    return found


def _operations(process: SavedProcess) -> list[np.void]:
    """The operations of the job that schedules executed."""
    events = process.events["operations"]
    return list(events[(events["algorithm"] > 0) & (events["comm"] == _world(process.snapshot))])


def _schedule_of(process: SavedProcess, operation: np.void) -> Schedule:
    kind = _native.OP_NAMES[int(operation["kind"])]
    text = process.snapshot.names["algorithm", int(operation["comm"]), int(operation["algorithm"])]
    algorithm, parameters = parse_algorithm(kind, text)
    return algorithm.schedule(NUM_RANKS, **parameters)


def _table(schedule: Schedule, operation: np.void) -> list[tuple[int, int, int]]:
    """The messages of an operation by the table of its schedule: (source, destination, bytes)."""
    nbytes, root = int(operation["nbytes"]), max(int(operation["peer"]), 0)
    has_blocks = schedule.collective in ("all_gather", "reduce_scatter", "all_to_all")
    sizes = sizes_of(schedule, nbytes * (NUM_RANKS if has_blocks else 1), itemsize=4)
    starts = [*schedule.message_starts.tolist(), len(schedule)]
    messages = []
    for begin, end in itertools.pairwise(starts):
        source, destination = (
            schedule.rank_at(int(place[begin]), root) for place in (schedule.sources, schedule.destinations)
        )
        message = source, destination, int(sizes[schedule.blocks[begin:end]].sum())
        if message[2] or schedule.collective == "barrier":
            messages.append(message)
    return messages


def _messages(process: SavedProcess, operation: np.void, kind: int) -> Counter[tuple[int, int]]:
    events = process.events["transfers"]
    ours = events[(events["seq"] == operation["seq"]) & (events["comm"] == operation["comm"])]
    return Counter((int(each["peer"]), int(each["nbytes"])) for each in ours[ours["kind"] == kind])


def test_messages_are_those_of_the_schedules(ranks: list[SavedProcess]) -> None:
    of_rank_0 = _operations(ranks[0])
    assert len(of_rank_0) >= 50
    assert len({_native.OP_NAMES[int(each["kind"])] for each in of_rank_0}) >= 7
    for rank, process in enumerate(ranks):
        operations = _operations(process)
        assert [int(each["seq"]) for each in operations] == [int(each["seq"]) for each in of_rank_0]
        for operation in operations:
            schedule = _schedule_of(process, operation)
            table = _table(schedule, operation)
            sent = Counter((to, nbytes) for source, to, nbytes in table if source == rank != to)
            received = Counter((source, nbytes) for source, to, nbytes in table if to == rank != source)
            assert _messages(process, operation, SEND) == sent, (rank, schedule)
            assert _messages(process, operation, RECEIVE) == received, (rank, schedule)
            assert sum(nbytes for _, nbytes in sent) == sum(each[1] for each in sent)
            if sent or schedule.collective != "scan":
                assert int(operation["aux"]) == sum(nbytes * number for (_, nbytes), number in sent.items())


def test_every_transfer_belongs_to_an_operation_and_completes(ranks: list[SavedProcess]) -> None:
    for process in ranks:
        events = process.events["transfers"]
        assert set(events["state"]) == {3} and set(events["layer"]) == {_TRANSFER}
        assert np.all(events["t_end"] >= events["t_begin"])
        by_number = {(int(each["comm"]), int(each["seq"])): each for each in process.events["operations"]}
        for event in events:
            operation = by_number[int(event["comm"]), int(event["seq"])]
            assert operation["t_begin"] <= event["t_begin"] and event["t_end"] <= operation["t_end"]
            assert event["algorithm"] == operation["algorithm"]
            is_local = event["kind"] in (COPY, REDUCE)
            assert (event["peer"] == -1) == is_local
            assert (event["reduce"] == 0xFF) == (event["kind"] != REDUCE)


def test_the_totals_are_the_matrix_of_communication(ranks: list[SavedProcess]) -> None:
    matrix = np.zeros((2, NUM_RANKS, NUM_RANKS), np.int64)
    for rank, process in enumerate(ranks):
        totals = process.snapshot.histograms
        totals = totals[(totals["layer"] == _TRANSFER) & (totals["comm"] == _world(process.snapshot))]
        for kind in (SEND, RECEIVE):
            for entry in totals[totals["kind"] == kind]:
                ends = (rank, int(entry["peer"])) if kind == SEND else (int(entry["peer"]), rank)
                matrix[kind][ends] += int(entry["nbytes"])
        assert totals["count"].sum() == len(process.events["transfers"])
    expected = np.zeros((NUM_RANKS, NUM_RANKS), np.int64)
    for operation in _operations(ranks[0]):
        for source, destination, nbytes in _table(_schedule_of(ranks[0], operation), operation):
            if source != destination:
                expected[source, destination] += nbytes
    np.testing.assert_array_equal(matrix[SEND], expected)
    np.testing.assert_array_equal(matrix[RECEIVE], expected)


def test_a_ring_sends_what_its_formula_says(ranks: list[SavedProcess]) -> None:
    for rank, process in enumerate(ranks):
        of_rings = [
            operation
            for operation in _operations(process)
            if _native.OP_NAMES[int(operation["kind"])] == "all_reduce"
            and _schedule_of(process, operation).algorithm == "ring"
            and operation["nbytes"] == 24_000
        ]
        (operation,) = of_rings
        sent = _messages(process, operation, SEND)
        assert sum(nbytes * number for (_, nbytes), number in sent.items()) == 24_000 * 2 * (NUM_RANKS - 1) / NUM_RANKS
        assert {peer for peer, _ in sent} <= {(rank + 1) % NUM_RANKS, (rank - 1) % NUM_RANKS}


# Rank 2 stops when it has issued the operation, so that the others have begun it.
_HANGING = """
import os, signal
import numpy as np
import hocket as hk

with hk.init(backends=["shm"], timeout=100) as comm:
    x = np.ones(8_000_000, np.float32)
    comm.all_reduce(x[:16], backend="shm", algorithm="ring")
    work = comm.all_reduce(x, backend="shm", algorithm="ring", async_op=True)
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    work.wait()
"""


def test_a_transfer_to_a_peer_that_hangs_is_in_flight(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_HANGING)
    launcher = subprocess.Popen([sys.executable, "-m", "hocket", "run", "-n", str(NUM_RANKS), str(script)])
    try:
        # One neighbour in the ring waits for what rank 2 sends, both or the other one until it takes what they send.
        waiting = {rank: _await_transfer(launcher.pid, rank, peer=2) for rank in (1, 3)}
        assert "receive" in {each.name for each in waiting.values()} <= {"send", "receive"}
        assert {(each.target, each.nbytes) for each in waiting.values()} == {("world", 8_000_000)}
        snapshots = _by_rank(launcher.pid)
        for rank, each in waiting.items():
            pid = str(snapshots[rank].owner.pid)
            (shown,) = json.loads(hocket("observe", "attach", pid, "--json").stdout)
            in_flight = shown["activity"]["in_flight"]
            transfers = [other for other in in_flight if other["ring"] == "transfers"]
            assert (each.name, 2) in {(other["name"], other["peer"]) for other in transfers}
            (operation,) = [other for other in in_flight if other["ring"] == "operations"]
            assert {other["number"] for other in transfers} == {operation["number"]}
            assert f"{each.name} 7.6 MiB with rank 2 on world" in hocket("observe", "attach", pid).stdout
        os.kill(snapshots[2].owner.pid, signal.SIGCONT)
        assert launcher.wait(scaled(60)) == 0
    finally:
        launcher.kill()
        launcher.wait()


def _by_rank(launcher: int) -> dict[int | None, RecorderSnapshot]:
    try:
        snapshots = [place.read() for place in find_recorders(launcher)]
    except RecorderError:
        return {}  # the job is starting
    return {snapshot.owner.rank: snapshot for snapshot in snapshots}


def _await_transfer(launcher: int, rank: int, peer: int) -> Any:
    """Return the transfer of a rank with a peer that stays in flight."""
    deadline = time.monotonic() + scaled(40)
    while time.monotonic() < deadline:
        snapshot = _by_rank(launcher).get(rank)
        for each in activity_of(snapshot).in_flight if snapshot else ():
            if each.ring == "transfers" and each.peer == peer and each.since_s > 1.0:
                return each
        time.sleep(0.05)
    raise AssertionError(f"rank {rank} has no transfer with rank {peer} in flight")
