"""The flight record: files for torch's analyser `torchfrtrace`.

Each rank writes one file, ``rank-N``, into a folder that holds nothing else; ``torchfrtrace FOLDER`` reads all of them.
The format is that of torch.distributed's flight recorder, version 2.10 (torch/distributed/flight_recorder/components in
torch 2.13): a pickled dict of plain values. Its limits, and how they are met:

- The analyser accepts only the names of torch's own backends: every operation is named "gloo:...", and
  "hocket_backend" has the backend that carried it.
- It has no scan, dup and group: they are written as a reduce and as splits.
- It matches a message among all ranks of a group: each pair of ranks has its own group.
- It expects shapes; a record has sizes in bytes, so every array has one axis.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket import _native
from hocket.trace.record import Record
from hocket.whole_file import write_whole

_VERSION = "2.10"
_NAMES = {
    "scan": "reduce",
    "dup": "split",
    "group": "split",
    "all_gatherv": "all_gather_v",
    "reduce_scatterv": "reduce_scatter_v",
    "gatherv": "gather",
    "scatterv": "scatter",
    "all_to_allv": "all_to_all_v_single",
}
_STATES = {"issued": "scheduled", "waited": "started", "failed": "started"}
_UNKNOWN: list[int] = []  # the analyser does not compare an empty shape
_MESSAGES = ("send", "recv")


@dataclass(frozen=True)
class GroupRecords:
    """The operations of one communicator.

    Args:
        name: equal on all members; differs from the names of the job's other communicators.
        label: a description for readers.
        ranks: rank in the world of each member, by its rank in the communicator.
        rank: rank of this process in the communicator.
        records: its operations, oldest first.

    Examples:
        >>> with hk.init() as comm:
        ...     comm.barrier()
        ...     group = hk.trace.GroupRecords("0", "world", ranks=[0], rank=0, records=comm.records())
        >>> [record.op for record in group.records]
        ['barrier']
    """

    name: str
    label: str
    ranks: Sequence[int]
    rank: int
    records: Sequence[Record]


def write_flight_record(folder: Path, *, rank: int, groups: Sequence[GroupRecords]) -> Path:
    """Write ``rank-N`` for ``torchfrtrace``; return its path.

    `Communicator.dump_flight_record` calls it for all communicators of a rank.

    Args:
        folder: created if it does not exist; should hold nothing else.
        rank: rank of this process in the world; the file name has it.
        groups: the communicators of this process.

    Raises:
        OSError: the file could not be written.

    Examples:
        >>> import pickle
        >>> from pathlib import Path
        >>> with hk.init() as comm:
        ...     comm.all_reduce(np.ones(4))
        ...     group = hk.trace.GroupRecords("0", "world", ranks=[0], rank=0, records=comm.records())
        >>> path = hk.trace.write_flight_record(Path("flight"), rank=0, groups=[group])
        >>> [entry["profiling_name"] for entry in pickle.loads(path.read_bytes())["entries"]]
        ['gloo:all_reduce']
    """
    config: dict[str, dict[str, str]] = {}
    entries: list[tuple[int, dict[str, Any]]] = []
    for group in groups:
        config[group.name] = {"name": group.name, "desc": group.label, "ranks": str(sorted(group.ranks))}
        for record in group.records:
            if record.op not in _MESSAGES:
                entries.append((record.begin_ns, _collective(group, record)))
            elif record.peer is not None and record.peer != group.rank:
                pair = sorted(group.ranks[each] for each in (group.rank, record.peer))
                name = f"{group.name} {pair[0]}-{pair[1]}"
                config[name] = {"name": name, "desc": f"{group.label}, messages", "ranks": str(pair)}
                entries.append((record.begin_ns, _message(group, record, name, pair)))
    entries.sort(key=lambda entry: entry[0])
    # The analyser drops entries below the largest first record_id of all ranks: other ranks no longer have them.
    forgotten = sum(_first_number(group) - 1 for group in groups)
    content = {
        "version": _VERSION,
        "pg_config": config,
        "pg_status": {},
        "entries": [{"record_id": number, **entry} for number, (_, entry) in enumerate(entries, forgotten)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{rank}"
    # Written beside the folder first: the analyser reads every file in the folder.
    beside = folder.parent / f".flight-{rank}.{os.urandom(8).hex()}"
    write_whole(beside, lambda part: part.write_bytes(pickle.dumps(content, protocol=2)))
    beside.replace(path)
    return path


def _first_number(group: GroupRecords) -> int:
    return next((record.seq for record in group.records if record.op not in _MESSAGES), 1)


def _collective(group: GroupRecords, record: Record) -> dict[str, Any]:
    inputs, outputs = _shapes(record, len(group.ranks))
    return {
        "profiling_name": f"gloo:{_NAMES.get(record.op, record.op)}",
        "collective_seq_id": record.seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "process_group": (group.name, group.label),
        "input_sizes": [inputs],
        "output_sizes": [outputs],
        **_common(record),
    }


def _message(group: GroupRecords, record: Record, name: str, pair: Sequence[int]) -> dict[str, Any]:
    assert record.peer is not None
    own, peer = pair.index(group.ranks[group.rank]), pair.index(group.ranks[record.peer])
    is_send = record.op == "send"
    arrow = f"send {own}->{peer}" if is_send else f"recv {own}<-{peer}"
    # hocket numbers messages by direction; the analyser has one order for both directions of a pair.
    number = 2 * record.seq + (own if is_send else peer)
    size = [record.nbytes // _native.ITEM_NBYTES[record.dtype]]
    return {
        "profiling_name": f"gloo:{arrow}",
        "collective_seq_id": number,
        "p2p_seq_id": number,
        "is_p2p": True,
        "process_group": (name, f"{group.label}, messages"),
        "input_sizes": [size],
        "output_sizes": [size],
        **_common(record),
    }


def _common(record: Record) -> dict[str, Any]:
    end_ns = None
    if record.state == "completed" and record.seconds is not None:
        end_ns = record.begin_ns + round(record.seconds * 1e9)
    return {
        "op_id": record.seq,
        "pg_id": 0,
        "state": _STATES.get(record.state, record.state),
        "input_dtypes": [record.dtype],
        "output_dtypes": [record.dtype],
        "time_created_ns": record.begin_ns,
        "time_discovered_started_ns": record.begin_ns if record.state != "issued" else None,
        "time_discovered_completed_ns": end_ns,
        "retired": end_ns is not None,
        "timeout_ms": 0,
        "frames": [],
        "hocket_backend": record.backend,
        "hocket_state": record.state,
    }


def _shapes(record: Record, num_ranks: int) -> tuple[list[int], list[int]]:
    items = record.nbytes // _native.ITEM_NBYTES[record.dtype]
    one, all_ = [items], [items * num_ranks]
    match record.op:
        case "all_gather" | "gather":
            return one, all_
        case "reduce_scatter" | "scatter":
            return all_, one
        case "all_to_all":
            return all_, all_
        case "gatherv" | "scatterv" | "all_to_allv":
            return _UNKNOWN, _UNKNOWN
        case _:
            return one, one
