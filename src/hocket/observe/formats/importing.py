"""Records of other tools, read into a folder of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.formats import darshan_log, flight_record, inspector, ras, trace_events
from hocket.observe.formats.imported import ImportedTables
from hocket.observe.formats.reading import pieces_of
from hocket.observe.saved import empty_folder
from hocket.observe.store.parquet import ENDINGS, save_tables

_DARSHAN = ".darshan"
_PICKLE = b"\x80"


@dataclass(frozen=True)
class ImportFormat:
    """A format that can be read.

    Args:
        name: of it, for ``--format``.
        read: adds what a file says to tables.
        mark: bytes near the begin of such files and of no other ones.
        text: what it is.
    """

    name: str
    read: Callable[[Path, ImportedTables], None]
    mark: bytes
    text: str


IMPORT_FORMATS = (
    ImportFormat("darshan", darshan_log.read_darshan, b"", "logs of Darshan"),
    ImportFormat("inspector", inspector.read_inspector, b'"inspector_output_format_version"',
                 "records of NCCL's Inspector"),
    ImportFormat("flight", flight_record.read_flight_record, b"pg_status", "torch's flight records"),
    ImportFormat("trace", trace_events.read_trace_events, b'"ph"', "timelines of torch's profiler and Chrome's format"),
    ImportFormat("ras", ras.read_ras, b'"nccl_version"', "reports of ncclras -f json"),
)  # fmt: skip
"""A file has the first one whose mark it has; others say the version of NCCL, too."""


def import_records(
    paths: str | Path | Iterable[str | Path], folder: str | Path, *, format: str | None = None
) -> dict[str, int]:
    """Read records of other tools into a folder of Parquet tables, which `query_tables` and others read.

    | format | files | tables |
    |---|---|---|
    | ``darshan`` | logs of Darshan; needs ``pip install 'hocket[darshan]'`` | files, file_counters, io |
    | ``inspector`` | JSON lines of NCCL's Inspector, 4.0 to 4.2 | operations, communicators |
    | ``ras`` | reports of ``ncclras -f json`` | members, collective_counts, communicators |
    | ``flight`` | torch's flight records, 2.x; names end in the rank | operations, communicators |
    | ``trace`` | timelines of torch's profiler, Chrome and hocket | slices, counters, operations |

    All have "sources", a row for each file, and "processes". "is_partial" says that the other tool itself had left
    something out, "num_left_out" how many entries have no place in these tables. Tables have the columns that those
    of a run have in `query_run`, and others. Times are seconds since the earliest one in the files, which the clock of
    its host showed at "origin_unix_s"; clocks of several hosts are not aligned.

    Args:
        paths: files, or folders of them.
        folder: new or empty; its name ends in .parquet.
        format: of all files; by default that of each file is found from its content.

    Returns:
        The number of rows by table.

    Raises:
        InvalidArgument: there is no file, a format is unknown, or the folder cannot be written.
        MissingPackage: DuckDB, or what a format needs, is not installed.
        RecorderError: a file is not as it should be; names the place in it. Nothing is written.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from hocket import observe
        >>> event = {"ph": "X", "name": "step", "pid": 1, "tid": 1, "ts": 5.0, "dur": 2000.0}
        >>> _ = Path("timeline.json").write_text(json.dumps({"traceEvents": [event]}))
        >>> observe.import_records(["timeline.json"], "timeline.parquet")
        {'slices': 1, 'sources': 1, 'processes': 1}
        >>> observe.query_tables("timeline.parquet", "SELECT name, seconds FROM slices").rows
        (('step', 0.002),)
    """
    target = Path(folder)
    if not target.name.endswith(ENDINGS):
        raise InvalidArgument(f"{target} must end in {ENDINGS[0]}: it becomes a folder of tables")
    known = {each.name: each for each in IMPORT_FORMATS}
    if format is not None and format not in known:
        raise InvalidArgument(f"the format must be one of {', '.join(known)}, not {format!r}")
    given = [paths] if isinstance(paths, (str, Path)) else paths
    files = [file for path in given for file in _files_of(Path(path))]
    if not files:
        raise InvalidArgument("no file to import was named")
    for place, file in enumerate(files):
        if file.resolve() in {each.resolve() for each in files[:place]}:
            raise InvalidArgument(f"{file} was named twice")
    tables = ImportedTables()
    for file in files:
        (known[format] if format else import_format_of(file)).read(file, tables)
    columns = tables.tables()
    empty_folder(target)
    try:
        save_tables(columns, target)
    except BaseException:
        rmtree(target, ignore_errors=True)
        raise
    return {name: len(next(iter(table.values()))) for name, table in columns.items()}


def import_format_of(path: Path) -> ImportFormat:
    """Return the format of a file, from its content.

    Raises:
        RecorderError: the format is unknown, or the file cannot be read.
    """
    if path.name.endswith(_DARSHAN):
        return IMPORT_FORMATS[0]
    head = next(pieces_of(path), b"")
    if not head.strip():
        raise RecorderError(f"{path}: it is empty")
    if head.startswith(_PICKLE):
        return next(each for each in IMPORT_FORMATS if each.name == "flight")
    for each in IMPORT_FORMATS:
        if each.mark and each.mark in head:
            return each
    known = ", ".join(each.text for each in IMPORT_FORMATS)
    raise RecorderError(f"{path}: unknown format; supported are {known}. Use --format to choose one")


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.is_file())
        if not found:
            raise InvalidArgument(f"{path} has no files; folders in it are not searched")
        return found
    if not path.exists():
        raise InvalidArgument(f"{path} does not exist")
    return [path]
