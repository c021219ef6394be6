"""Read runs that were written as hocket's own JSON."""

from __future__ import annotations

from pathlib import Path

from hocket.bench.formats.json import HEAD
from hocket.bench.result import Result
from hocket.bench.run import Run
from hocket.errors import InvalidArgument


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
    except (KeyError, TypeError, ValueError) as error:  # InvalidArgument is a ValueError
        raise InvalidArgument(f"{path} is damaged: {error}") from error
