"""Recorded runs as files of torch's flight recorder, for its analyser `torchfrtrace`.

Each rank of the job with most ranks has a file ``rank-N``; see `hocket.trace.write_flight_record` for the format and
its limits. Operations that the analyser does not know, such as MPI's neighbourhood collectives, are left out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hocket import _native
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import operations_of
from hocket.observe.jobs import ranks_of_largest_job
from hocket.trace import EVENT_STATES, GroupRecords, Record, write_flight_record

if TYPE_CHECKING:
    import numpy as np

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.saved import ObservedRun

ENDINGS = (".flight",)
_MESSAGES = ("send", "recv")
_BLOCKS = ("reduce_scatter", "all_to_all")
"""Of other libraries a record has the bytes of all blocks, and of hocket those of one."""
_DIFFERS = ("scatter", "scatterv", "gatherv", "all_gatherv", "reduce_scatterv", "all_to_allv")
"""Of other libraries the recorded bytes of these differ between the ranks."""
_BYTE = "uint8"


def write_flight_records(run: ObservedRun, folder: Path) -> None:
    """Write one file for each rank of the job with most ranks.

    Args:
        run: from `open_run`.
        folder: made if it does not exist; should hold nothing else, because the analyser reads all its files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    operations = operations_of(run)
    of_program = numbers_of_program(operations.communicators)
    for rank, place in ranks_of_largest_job(run.processes).items():
        groups = [group for comm in of_program if (group := _group(run, operations, comm, place, rank)) is not None]
        write_flight_record(folder, rank=rank, groups=groups)


def _group(run: ObservedRun, operations: RunOperations, comm: int, place: int, rank: int) -> GroupRecords | None:
    """The operations of one process on one communicator; None: it is no member, or the members are not known."""
    communicator = operations.communicators[comm]
    members = communicator.members or tuple(
        run.processes[each].snapshot.owner.rank or 0 for _, each in sorted(communicator.processes.items())
    )
    if rank not in members:
        return None
    rows = operations.rows[(operations.rows["comm"] == comm) & (operations.rows["process"] == place)]
    counts: Counter[tuple[str, int]] = Counter()
    records = []
    for row in rows:
        op = operations.kind_names[row["kind"]]
        if op not in _native.OP_NAMES:
            continue
        number = int(row["number"])
        if op in _MESSAGES:
            # Other libraries number all messages of a group; the analyser needs those of each pair and direction.
            counts[op, int(row["peer"])] += 1
            number = counts[op, int(row["peer"])]
        records.append(_record(run, operations, row, op, number, len(members)))
    return GroupRecords(str(comm), communicator.label, members, members.index(rank), records)


def _record(run: ObservedRun, operations: RunOperations, row: np.void, op: str, number: int, num_ranks: int) -> Record:
    nbytes = int(row["nbytes"])
    if row["is_foreign"]:
        nbytes = 0 if op in _DIFFERS else nbytes // num_ranks if op in _BLOCKS else nbytes
    begin_s, seconds = float(row["begin"]), float(row["end"] - row["begin"])
    return Record(
        op=op,
        seq=number,
        nbytes=nbytes,
        dtype=_BYTE,
        reduction=None,
        peer=None if row["peer"] < 0 else int(row["peer"]),
        tag=int(row["tag"]),
        backend=operations.names[row["library"]],
        state=EVENT_STATES[row["state"]],
        is_async=bool(row["is_async"]),
        begin_ns=round((run.description.began_s + begin_s) * 1e9),
        seconds=None if seconds != seconds else seconds,
    )
