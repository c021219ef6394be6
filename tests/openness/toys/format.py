"""A format with the number of results."""

from hocket.bench.layout import ResultLayout
from hocket.bench.run import Run


def write(run: Run, layout: ResultLayout) -> str:
    return f"{len(run.results)} results\n"
