"""hocket's own form: everything that was measured, which `compare` and `report` read."""

from __future__ import annotations

import json

from hocket.bench.formats.layout import Layout
from hocket.bench.run import Run

VERSION = 1

_PLAIN = Layout()


def write(run: Run, layout: Layout = _PLAIN) -> str:
    """Return one JSON object."""
    return json.dumps(
        {
            "hocket_bench": VERSION,
            "results": [each.to_json(raw=True) for each in run.results],
            "core_factor": run.core_factor,
            "foreign_busy": run.foreign_busy,
            "warnings": list(run.warnings),
        }
    )
