"""Whole jobs: from the start of their processes to their end."""

from __future__ import annotations

from hocket.bench.registry import Benchmark, Prepared, Setting
from hocket.errors import InvalidState


def _make(setting: Setting) -> Prepared:
    raise InvalidState("a start is measured from outside of the job")


BENCHMARKS = (
    Benchmark(
        "startup", "Startup", "us", _make, "a job's processes start, open the library, meet, and leave",
        ("init", "hello"), "whole job", has_sizes=False,
    ),
)  # fmt: skip
