"""`hocket observe import`: records of other tools as tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hocket.cli._output import AsJson, json_text

IMPORT_HELP = """Read records of other tools into a folder of Parquet tables, to ask in SQL.

FILE is a log of Darshan, a file of NCCL's Inspector, a report of ncclras -f json, a flight record of torch, or a
timeline of torch's profiler or Chrome; or a folder of such files, one for each rank. The format is found from the
content. The last name is the folder to write; it ends in .parquet.

Nothing in the files is believed: a value of a wrong type is refused with its place, and pickles are read only if they
consist of plain values."""
IMPORT_EXAMPLES = """\b
Examples:
  hocket observe import job.darshan job.parquet
  hocket observe query job.parquet "SELECT file, sum(read_nbytes) AS n FROM files GROUP BY file ORDER BY n DESC"
  hocket observe import nccl-inspector-1234 nccl.parquet
  hocket observe import flight/rank-0 flight/rank-1 flight.parquet
  hocket observe query flight.parquet "SELECT number, op, list(rank) FROM operations GROUP BY ALL ORDER BY number\""""


def import_files(
    names: Annotated[
        list[Path], typer.Argument(metavar="FILE... TABLES", help="Files or folders; then where to write.")
    ],
    format: Annotated[
        str | None, typer.Option("--format", help="Format of all files: darshan, inspector, ras, flight or trace.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Import records."""
    from hocket.observe import import_records, query_tables

    *files, target = names
    rows = import_records(files, target, format=format)
    sql = "SELECT file FROM sources WHERE is_partial"
    for (file,) in query_tables(target, sql).rows:
        print(f"hocket observe: {file}: the tool that wrote it had left something out", file=sys.stderr)
    shown = f"{target}: " + ", ".join(f"{table} {count} rows" for table, count in rows.items())
    print(json_text({"tables": str(target), "rows": rows}) if as_json else shown)
    return 0
