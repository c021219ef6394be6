"""Logs of Darshan, which counts the I/O of MPI jobs: read by its own library, in a process of their own.

That library is written in C and may crash on a damaged log; then the log is refused, and this process goes on. What it
cannot read it leaves out with a line on its standard error, so such a line refuses the log, too.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from hocket.errors import MissingPackage, RecorderError
from hocket.observe.formats.reading import MOST_NBYTES, ReadObject, parse_json

if TYPE_CHECKING:
    from hocket.observe.formats.imported import ImportedTables

_TIMEOUT_S = 600.0
_COUNTED = ("POSIX", "STDIO", "MPI-IO", "H5F", "H5D", "PNETCDF_FILE", "PNETCDF_VAR")
"""Modules whose records are counters of one file."""
_SEGMENTED = {"DXT_POSIX": "POSIX", "DXT_MPIIO": "MPI-IO"}
"""Modules that have single accesses, and the module that counts the same ones."""
_TOTALS = {
    "num_opens": ("OPENS", "INDEP_OPENS", "COLL_OPENS"),
    "num_reads": ("READS", "INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS"),
    "num_writes": ("WRITES", "INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES"),
    "read_nbytes": ("BYTES_READ",), "written_nbytes": ("BYTES_WRITTEN",),
    "read_s": ("F_READ_TIME",), "write_s": ("F_WRITE_TIME",), "meta_s": ("F_META_TIME",),
}  # fmt: skip
"""Which counters make up a column of "files", after the name of their module."""
_IDENTS = ("RENAMED_FROM", "FILE_REC_ID")
"""Ends of the names of counters that are the number of another file."""
_COMPLAINT = "Error:"
_MOST_COMPLAINTS_NBYTES = 1 << 16
_NO_PACKAGE = 3


def read_darshan(path: Path, tables: ImportedTables) -> None:
    """Add what a job read and wrote, by rank, module and file.

    Rank -1 stands for all ranks together: Darshan merges the records of files that all of them opened.

    Args:
        path: of the log of one job.
        tables: to add to.

    Raises:
        MissingPackage: Darshan's package is not installed.
        RecorderError: the log cannot be read; says why.
    """
    log = ReadObject(_read_in_child(path), str(path))
    job = log.child("job")
    began_ns = job.integer("start_time_sec") * 10**9 + job.integer("start_time_nsec")
    files = log.child("files")
    processes: dict[int, int] = {}

    def process_of(record: ReadObject) -> int:
        rank = record.integer("rank")
        if rank < 0:
            return -1
        if rank not in processes:
            processes[rank] = tables.process(
                (str(path), rank), rank=rank, size=job.integer("nprocs"), host=record.text("hostname", ""),
                program=log.text("program"),
            )  # fmt: skip
        return processes[rank]

    num_records = 0
    # Single accesses first: only they have the names of hosts.
    for record in log.children("segments"):
        _add_segments(tables, record, files, process_of(record), began_ns)
        num_records += 1
    for record in log.children("counters"):
        _add_counters(tables, record, files, process_of(record))
        num_records += 1
    tables.add("sources", file=str(path), format="Darshan", version=log.text("version"), num_records=num_records,
               num_left_out=len(log.sequence("left_out")), is_partial=log.boolean("is_partial"))  # fmt: skip


def _add_counters(tables: ImportedTables, record: ReadObject, files: ReadObject, process: int) -> None:
    layer, values = record.text("module"), record.child("values")
    file = files.text(record.text("id"), record.text("id"))
    place = {"process": process, "layer": layer, "file": file}
    prefix = layer.replace("-", "")
    totals: dict[str, float] = {}
    for column, parts in _TOTALS.items():
        found = [values.number(name) for part in parts if (name := f"{prefix}_{part}") in values]
        if found:
            totals[column] = sum(each for each in found if each >= 0) if max(found) >= 0 else -1
    renamed_from = record.text("renamed_from")
    tables.add("files", **place, **totals, renamed_from=files.text(renamed_from, renamed_from))
    for name in values.content:
        tables.add("file_counters", **place, counter=str(name), value=values.number(name))


def _add_segments(tables: ImportedTables, record: ReadObject, files: ReadObject, process: int, began_ns: int) -> None:
    layer, file = record.text("module"), files.text(record.text("id"), record.text("id"))
    for kind in ("read", "write"):
        for segment in record.children(kind):
            begin_ns, end_ns = (began_ns + round(segment.number(key) * 1e9) for key in ("start_time", "end_time"))
            tables.add("io", process=process, kind=kind, file=file, nbytes=segment.integer("length"), began_s=begin_ns,
                       ended_s=end_ns if end_ns >= begin_ns else None, state="completed", weight=1, layer=layer,
                       offset_nbytes=segment.integer("offset"))  # fmt: skip


def _read_in_child(path: Path) -> Any:
    if not path.is_file():
        raise RecorderError(f"{path}: it is no file")
    with TemporaryFile() as errors, TemporaryFile() as output:
        program = f"import sys; from {__name__} import print_log; sys.exit(print_log(sys.argv[1]))"
        command = [sys.executable, "-c", program, str(path.absolute())]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RecorderError(f"{path}: Darshan's library took longer than {_TIMEOUT_S:g} s") from None
        if done.returncode == _NO_PACKAGE:
            raise MissingPackage("logs of Darshan need its package: pip install 'hocket[darshan]'")
        reason = _reason(done.returncode, errors)
        if done.returncode or reason.startswith(_COMPLAINT):
            raise RecorderError(f"{path}: Darshan's library cannot read it: {reason}")
        if output.tell() > MOST_NBYTES:
            raise RecorderError(f"{path}: what it says has more than {MOST_NBYTES} bytes")
        output.seek(0)
        return parse_json(output.read(), str(path))


def _reason(code: int, errors: Any) -> str:
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    errors.seek(0)
    lines = [
        line for line in errors.read(_MOST_COMPLAINTS_NBYTES).decode(errors="replace").splitlines() if line.strip()
    ]
    complaints = [line for line in lines if line.startswith(_COMPLAINT)] or lines[-1:]
    return complaints[0][:200] if complaints else f"exit status {code}"


def print_log(path: str) -> int:
    """Print a log as JSON; return the exit status of the process."""
    try:
        import darshan.backend.cffi_backend as library
    except ImportError:
        return _NO_PACKAGE
    log = library.log_open(path)
    if not log["handle"]:
        print("not a Darshan log, or its version is not supported", file=sys.stderr)
        return 1
    job, modules = library.log_get_job(log), library.log_get_modules(log)
    names = library.log_get_name_records(log)
    known = (*_COUNTED, *_SEGMENTED)
    json.dump(
        {
            "version": job["log_ver"],
            "job": {key: job[key] for key in ("start_time_sec", "start_time_nsec", "nprocs")},
            "program": library.log_get_exe(log),
            "files": {str(ident): name for ident, name in names.items()},
            "counters": [each for module in modules if module in _COUNTED for each in _counters(library, log, module)],
            "segments": [
                each for module in modules if module in _SEGMENTED for each in _segments(library, log, module)
            ],
            "is_partial": any(each["partial_flag"] for each in modules.values()),
            "left_out": [module for module in modules if module not in known],
        },
        sys.stdout,
        default=_plain,
    )
    return 0


def _plain(number: Any) -> Any:
    """NumPy's integers and numbers have no JSON."""
    return number.item()


def _counters(library: Any, log: Any, module: str) -> Iterator[dict[str, Any]]:
    while (record := library.log_get_record(log, module, dtype="dict")) is not None:
        values = {**record["counters"], **record["fcounters"]}
        idents = {name: int(value) & (1 << 64) - 1 for name, value in values.items() if name.endswith(_IDENTS)}
        values = {name: value for name, value in values.items() if name not in ("id", "rank", *idents)}
        renamed_from = next((ident for name, ident in idents.items() if name.endswith(_IDENTS[0])), 0)
        yield {
            "module": module, "id": str(record["id"]), "rank": record["rank"], "values": values,
            "renamed_from": str(renamed_from or ""),
        }  # fmt: skip


def _segments(library: Any, log: Any, module: str) -> Iterator[dict[str, Any]]:
    while (record := library.log_get_dxt_record(log, module, dtype="dict")) is not None:
        yield {
            "module": _SEGMENTED[module], "id": str(record["id"]), "rank": record["rank"],
            "hostname": record["hostname"], "read": record["read_segments"], "write": record["write_segments"],
        }  # fmt: skip
