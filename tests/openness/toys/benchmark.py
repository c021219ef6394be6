"""A benchmark of an empty loop."""

from __future__ import annotations

from hocket.bench.registry import Benchmark, Prepared, Setting


class _Nothing(Prepared):
    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            pass

    def check(self, turn: int) -> None:
        pass


def _make(setting: Setting) -> Prepared:
    return _Nothing()


BENCHMARKS = (Benchmark("toy", "Toy", "us", _make, "a loop that does nothing", family="toys", has_sizes=False),)
