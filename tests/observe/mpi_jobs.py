"""Jobs of MPI programs that do not know hocket, with and without the preloaded hooks, and what these recorded."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket import _native
from hocket.bench.launchers import mpich_job, openmpi_job
from hocket.observe.run import hooks_library
from hocket.trace.event_check import FIRST_FOREIGN_KIND
from hocket.trace.record import EVENT_STATES
from hocket.trace.region import RecorderSnapshot, read_recorder

from ..load import scaled

HOOKS = hooks_library()
LAUNCHERS = {"mpich": mpich_job, "openmpi": openmpi_job}
PROC_NULL = -(2**31)
CANCELLED_TAG = 30_000
"""Receives with such tags are cancelled by the programs of these tests."""
IN_PLACE, ASYNC = 4, 1


@dataclass(frozen=True)
class MpiJob:
    """What a job left: one result and one recording for each rank.

    Args:
        results: what each rank's program gave to `leave`.
        recordings: of each rank; None without hooks.
    """

    results: list[Any]
    recordings: list[RecorderSnapshot]


_PROLOGUE = """
import json, os, sys
from mpi4py import MPI
world = MPI.COMM_WORLD
def leave(result):
    with open(os.path.join(os.environ["TEST_FOLDER"], f"result-{world.rank}.json"), "w") as file:
        json.dump(result, file)
"""


def run_mpi(
    library: str, script: str, folder: Path, *, num_ranks: int = 2, arguments: Sequence[str] = (),
    observe: str | None = "comm,io", variables: Mapping[str, str] | None = None,
) -> MpiJob:  # fmt: skip
    """Run a program, in which ``MPI`` and ``world`` are defined and ``leave(RESULT)`` is called once by each rank.

    Args:
        library: "mpich" or "openmpi".
        script: the program.
        folder: an empty folder.
        num_ranks: number of ranks.
        arguments: of the program.
        observe: what the hooks record; None: they are not preloaded.
        variables: further environment variables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "program.py"
    path.write_text(_PROLOGUE + script)
    return _run(library, [sys.executable, str(path), *arguments], folder, num_ranks, observe, variables or {})


@contextlib.contextmanager
def start_mpi(library: str, script: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program on two ranks, as `run_mpi` runs it; it is killed at the end."""
    path = folder / "program.py"
    path.write_text(_PROLOGUE + script)
    command, env = _command(library, [sys.executable, str(path)], folder, 2, "comm,io", {})
    with subprocess.Popen(command, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def run_executable(
    library: str, program: Path, folder: Path, *, variables: Mapping[str, str], observe: str | None = "comm,io"
) -> MpiJob:
    """Run a compiled program on two ranks; the rest as of `run_mpi`."""
    return _run(library, [str(program)], folder, 2, observe, variables)


def _command(
    library: str, program: list[str], folder: Path, num_ranks: int, observe: str | None, variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    recorders = folder / "recorders"
    recorders.mkdir()
    settings = {"TEST_FOLDER": str(folder), **variables}
    if observe is not None:
        settings |= {
            "LD_PRELOAD": str(HOOKS), "HOCKET_RECORDER_BUDGET": "all", "HOCKET_OBSERVE": observe,
            "HOCKET_RECORDER_FOLDER": str(recorders), "HOCKET_RECORDER_KEEP": "1",
        }  # fmt: skip
    # Only the ranks are observed, not their launcher.
    command = ["env", *(f"{name}={value}" for name, value in settings.items()), *program]
    (process,) = LAUNCHERS[library](command, num_ranks, library).processes
    return list(process.argv), {**os.environ, **process.env}


def _run(
    library: str, program: list[str], folder: Path, num_ranks: int, observe: str | None, variables: Mapping[str, str]
) -> MpiJob:
    command, env = _command(library, program, folder, num_ranks, observe, variables)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=scaled(100))
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    recordings = [read_recorder(path) for path in (folder / "recorders").iterdir()]
    assert all(each.problems == () for each in recordings), [each.problems for each in recordings]
    ranked = [each for each in recordings if each.owner.world_size == num_ranks]
    return MpiJob(results, sorted(ranked, key=lambda each: each.owner.rank or 0))


def kind_name(kind: int) -> str:
    """Return the name of a kind in the ring of foreign operations."""
    if kind >= FIRST_FOREIGN_KIND:
        return str(_native.FOREIGN_NAMES[kind - FIRST_FOREIGN_KIND])
    return str(_native.OP_NAMES[kind])


def operations(snapshot: RecorderSnapshot) -> list[dict[str, Any]]:
    """Return the recorded operations, each with names instead of numbers, in the order in which they began."""
    ring = snapshot.rings["foreign"]
    assert ring.issued == ring.recorded == len(ring.events), "the ring was too small for this test"
    found = []
    for event in ring.events:
        reduction = int(event["reduce"])
        found.append({
            "kind": kind_name(int(event["kind"])), "nbytes": int(event["nbytes"]), "peer": int(event["peer"]),
            "tag": int(event["aux"]), "comm": snapshot.names["communicator", int(event["comm"]), 0],
            "id": int(event["comm"]), "seq": int(event["seq"]), "state": EVENT_STATES[int(event["state"])],
            "dtype": _native.DTYPE_NAMES[int(event["dtype"])], "flags": int(event["flags"]),
            "reduction": _native.REDUCE_NAMES[reduction] if reduction < len(_native.REDUCE_NAMES) else None,
            "thread": int(event["thread"]), "ticks": int(event["t_end"]) - int(event["t_begin"]),
        })  # fmt: skip
    return found


def message_matrix(job: MpiJob, kind: str) -> Counter[tuple[int, int]]:
    """Return bytes by ranks in the job of sender and receiver, from the events of one kind: "send" or "recv"."""
    found: Counter[tuple[int, int]] = Counter()
    for snapshot in job.recordings:
        own = snapshot.owner.rank
        assert own is not None
        for each in operations(snapshot):
            if each["kind"] != kind or each["peer"] == PROC_NULL:
                continue
            if each["tag"] >= CANCELLED_TAG:
                assert (each["state"], each["nbytes"]) == ("failed", 0)
                continue
            assert each["state"] == "completed" and each["ticks"] > 0, each
            other = snapshot.members[each["id"]][each["peer"]]
            found[(own, other) if kind == "send" else (other, own)] += each["nbytes"]
    return +found
