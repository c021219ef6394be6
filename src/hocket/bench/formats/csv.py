"""CSV: a header line, then one line per result."""

from __future__ import annotations

import csv
import io

from hocket.bench.layout import ResultLayout
from hocket.bench.run import Run


def write(run: Run, layout: ResultLayout) -> str:
    """Return the lines: the values of `Result.to_json`, without lists."""
    rows = []
    for each in run.results:
        row = each.to_json()
        row["low"], row["high"] = row.pop("interval") or ("", "")
        del row["samples_s"], row["parts_s"], row["launches"]
        rows.append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
