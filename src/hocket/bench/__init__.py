"""The benchmark suite: measure, compare and judge operations of communication libraries.

Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.bench.apps.registry import problems
    from hocket.bench.apps.speedup import Speedup, measure_speedup
    from hocket.bench.choice import choose_points
    from hocket.bench.comparison import RunComparison as Comparison
    from hocket.bench.comparison import compare
    from hocket.bench.formats.json import load_run
    from hocket.bench.guidelines import GUIDELINES, Guideline, check
    from hocket.bench.guidelines import GuidelineFinding as Finding
    from hocket.bench.point import Point
    from hocket.bench.rank import open_drivers, open_world, opened, prepare_all
    from hocket.bench.registry import Benchmark, Prepared, Setting, benchmarks, find_benchmark
    from hocket.bench.result import Result
    from hocket.bench.run import Run, run_points
    from hocket.bench.selftest import FaultTrial as Trial
    from hocket.bench.selftest import run_trials
    from hocket.bench.targets import Target, parse_targets

__getattr__ = lazy(__name__)
__all__ = [
    "GUIDELINES",
    "Benchmark",
    "Comparison",
    "Finding",
    "Guideline",
    "Point",
    "Prepared",
    "Result",
    "Run",
    "Setting",
    "Speedup",
    "Target",
    "Trial",
    "benchmarks",
    "check",
    "choose_points",
    "compare",
    "find_benchmark",
    "load_run",
    "measure_speedup",
    "open_drivers",
    "open_world",
    "opened",
    "parse_targets",
    "prepare_all",
    "problems",
    "run_points",
    "run_trials",
]
