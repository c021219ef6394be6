"""The flight record: what torch's analyser `torchfrtrace` reads.

One file a rank, ``rank-N`` in a folder of its own, so that ``torchfrtrace FOLDER`` finds all of them. The form is that
of torch.distributed's flight recorder, version 2.10 (torch/distributed/flight_recorder/components in torch 2.13): a
pickled dict of plain values. Where it knows less than we do:

- The analyser takes no other library's names than those of torch's; every operation stands there as "gloo:...", and the
  backend that carried it under "hocket_backend".
- It has no scan, dup and group; they appear as a reduce and as splits.
- It matches a message among all ranks of a group; each pair of ranks therefore has a group of its own.
- It knows shapes; a record has sizes in bytes, so every array has one axis.
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
_UNKNOWN: list[int] = []  # a shape that the analyser compares with nothing
_MESSAGES = ("send", "recv")


@dataclass(frozen=True)
class GroupRecords:
    """What one communicator did.

    Args:
        name: unlike those of other communicators of the job, equal on all members.
        label: what it is, for readers.
        ranks: of the world, by rank of the communicator.
        rank: of this process in it.
        records: oldest first.
    """

    name: str
    label: str
    ranks: Sequence[int]
    rank: int
    records: Sequence[Record]


def write_flight_record(folder: Path, *, rank: int, groups: Sequence[GroupRecords]) -> Path:
    """Write ``rank-N`` for ``torchfrtrace``; return its path.

    Args:
        folder: made if it is not there; should hold nothing else.
        rank: of the world, names the file.
        groups: the communicators of this process.

    Raises:
        OSError: the file could not be written.
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
    # The analyser drops what some ranks have forgotten by these numbers; each group has counted what it did.
    forgotten = sum(_first_number(group) - 1 for group in groups)
    content = {
        "version": _VERSION,
        "pg_config": config,
        "pg_status": {},
        "entries": [{"record_id": number, **entry} for number, (_, entry) in enumerate(entries, forgotten)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{rank}"
    # Beside the folder first, for the analyser reads all that is in it.
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
    # Messages are numbered for each direction, and the analyser has one order for the pair.
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
