"""`hocket observe primitives`: which operations each host, job or process used most."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Annotated

import typer

from hocket.cli._output import AsJson, json_text

PRIMITIVES_HELP = """Show which operations each host, job or process used most: by size, and whether the caller waited
for them at once (blocking) or not."""
PRIMITIVES_EXAMPLES = """\b
Examples:
  hocket observe primitives run-1
  hocket observe primitives run-1 --by process --json"""
_MOST_SHOWN = 60


def primitives(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that `hocket observe run` has saved.")],
    by: Annotated[str, typer.Option("--by", help="host, job or process.")] = "host",
    as_json: AsJson = False,
) -> int:
    """Print how much each operation was used."""
    from hocket.cli._tables import console_of, table_of
    from hocket.comm.policy import format_nbytes, format_seconds
    from hocket.observe import open_run
    from hocket.observe import primitives as used

    found = used(open_run(run), by)
    if as_json:
        print(json_text({"run": str(run), "by": by, "primitives": [asdict(each) for each in found]}))
        return 0
    headings = (by, "operation", "size", "blocking", "count", "bytes", "time", "callers waited")
    table = table_of("", headings, headings[:4])
    for each in found[:_MOST_SHOWN]:
        size = f"{format_nbytes(each.least_nbytes)} to {format_nbytes(each.most_nbytes)}" if each.most_nbytes else "-"
        waited = "?" if isnan(each.blocked_s) else format_seconds(each.blocked_s)
        table.add_row(each.group, each.op, size, "no" if each.is_async else "yes", str(each.count),
                      format_nbytes(each.nbytes), format_seconds(each.seconds), waited)  # fmt: skip
    console_of(140).print(table)
    if len(found) > _MOST_SHOWN:
        print(f"{len(found)} rows; the first {_MOST_SHOWN} are shown, --json has all")
    return 0
