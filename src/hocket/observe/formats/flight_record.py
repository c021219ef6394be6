"""Files of torch's flight recorder: written of a run for its analyser `torchfrtrace`, and read.

Each rank of the job with most ranks has a file ``rank-N``; see `hocket.trace.write_flight_record` for the format and
its limits. Operations that the analyser does not know, such as MPI's neighbourhood collectives, are left out.

Files are pickles, or JSON. Pickles are read only if they consist of plain values: a pickle can call any function.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket import _native
from hocket.errors import RecorderError
from hocket.observe.analysis.communicators import numbers_of_program
from hocket.observe.analysis.operations import operations_of
from hocket.observe.formats.imported import nbytes_of, operation_of
from hocket.observe.formats.reading import ReadObject, parse_json, pieces_of
from hocket.observe.jobs import ranks_of_largest_job
from hocket.trace import EVENT_STATES, GroupRecords, Record, write_flight_record

if TYPE_CHECKING:
    import numpy as np

    from hocket.observe.analysis.operations import RunOperations
    from hocket.observe.formats.imported import ImportedTables
    from hocket.observe.saved import ObservedRun

ENDINGS = (".flight",)
_MESSAGES = ("send", "recv")
_BLOCKS = ("reduce_scatter", "all_to_all")
"""Of other libraries a record has the bytes of all blocks, and of hocket those of one."""
_DIFFERS = ("scatter", "scatterv", "gatherv", "all_gatherv", "reduce_scatterv", "all_to_allv")
"""Of other libraries the recorded bytes of these differ between the ranks."""
_BYTE = "uint8"
_PLAIN_OPCODES = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT",
    "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_LIST", "LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "GET", "BINGET",
    "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE",
})  # fmt: skip
"""Of Python's pickles: those that make plain values, and call nothing."""
_MOST_MEMO = 1 << 24
"""A pickle that names a larger place in its memory would make Python reserve all of it."""
_READ_VERSION = re.compile(r"2\.\d{1,3}")
_RANK = re.compile(r"(\d{1,9})(?:\.json|\.pkl|\.pickle)?$")
_PEER = re.compile(r":(?:send|recv) \d+(?:->|<-)(\d{1,9})$")
_STATES = {"scheduled": "issued", "started": "started", "completed": "completed"}


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


def read_flight_record(path: Path, tables: ImportedTables) -> None:
    """Add the operations of one rank; the last number in the name of the file is its rank.

    Args:
        path: of a file that torch or hocket has written, a pickle or JSON.
        tables: to add to.

    Raises:
        RecorderError: it is no such file, is damaged, or is a pickle of more than plain values.
    """
    found = _RANK.search(path.name)
    if found is None:
        raise RecorderError(f"{path}: the name of a flight record should end in its rank, such as rank-0")
    rank = int(found[1])
    content = b"".join(pieces_of(path))
    is_pickle = content.startswith(b"\x80")
    record = ReadObject(_unpickle(content, path) if is_pickle else parse_json(content, str(path)), str(path))
    version = record.text("version")
    if not _READ_VERSION.fullmatch(version):
        raise RecorderError(f"{path}: it has version {version!r:.20}; this hocket reads 2.x")
    groups = record.child("pg_config").content
    process = tables.process(("flight record", rank), rank=rank, host=record.text("host_name", ""))
    num_records = 0
    for entry in record.children("entries"):
        _add(tables, entry, process, groups)
        num_records += 1
    tables.add("sources", file=str(path), format="flight record", version=version, num_records=num_records,
               num_left_out=0)  # fmt: skip


def _unpickle(content: bytes, path: Path) -> object:
    try:
        for opcode, argument, place in pickletools.genops(content):
            if opcode.name not in _PLAIN_OPCODES:
                raise RecorderError(f"{path}, offset {place}: a pickle of more than plain values is not read")
            if "PUT" in opcode.name and isinstance(argument, int) and argument > _MOST_MEMO:
                raise RecorderError(f"{path}, offset {place}: it is damaged")
        return pickle.Unpickler(io.BytesIO(content)).load()
    except RecorderError:
        raise
    except Exception as error:  # unpickling damaged data raises many kinds
        raise RecorderError(f"{path}: it is no flight record, or is damaged: {error}") from None


def _add(tables: ImportedTables, entry: ReadObject, process: int, groups: dict[Any, Any]) -> None:
    name, label = (*entry.sequence("process_group"), "", "")[:2]
    if not isinstance(name, str) or not isinstance(label, str):
        raise RecorderError(f'{entry.place}: "process_group" should be a name and a description')
    config = ReadObject(groups.get(name) or groups.get("") or {}, f"{entry.place}, group {name!r:.40}")
    ranks = [int(each) for each in re.findall(r"\d{1,9}", config.text("ranks", ""))]
    kind = entry.text("profiling_name")
    library = kind.split(":")[0] if ":" in kind else ""
    state = _STATES.get(entry.text("state"), entry.text("state"))
    if state == "issued" and library == "gloo" and entry.boolean("retired", False):
        state = "completed"  # torch does not record when operations of gloo start and end
    peer = _PEER.search(kind)
    duration_ms = entry.number("duration_ms", None)
    began_ns = entry.integer("time_discovered_started_ns", None)
    tables.add(
        "operations",
        process=process,
        comm=tables.comm((name, tuple(ranks)), label or name, len(ranks), ranks),
        number=entry.integer("p2p_seq_id" if entry.boolean("is_p2p", False) else "collective_seq_id"),
        op=operation_of(kind),
        peer=int(peer[1]) if peer else -1,
        nbytes=_nbytes(entry),
        began_s=entry.integer("time_created_ns") if began_ns is None else began_ns,
        ended_s=entry.integer("time_discovered_completed_ns", None),
        state=state,
        library=library,
        weight=1,
        **({} if duration_ms is None else {"seconds": duration_ms * 1e-3}),
    )


def _nbytes(entry: ReadObject) -> int:
    """Of what a rank passed, or of what it got if it passed nothing; -1 if a type is unknown."""
    for side in ("input", "output"):
        if shapes := entry.sequence(f"{side}_sizes", ()):
            return nbytes_of(shapes, entry.sequence(f"{side}_dtypes", ()))
    return -1
