"""The rows of a table as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields

from hocket.tune.export import exporter
from hocket.tune.table import Table, TableRow


@exporter("csv", "the measured rows, for spreadsheets")
def write(table: Table, ranks: Sequence[int]) -> str:
    """Write one line per row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(TableRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in table.rows if row.num_ranks in ranks)
    return text.getvalue()
