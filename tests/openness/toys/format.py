"""How many results there are."""

from hocket.bench.layout import Layout
from hocket.bench.run import Run


def write(run: Run, layout: Layout) -> str:
    return f"{len(run.results)} results\n"
