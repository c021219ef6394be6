"""Benchmarks of whole jobs, from the start of their processes to their end."""

from __future__ import annotations

from hocket.bench.registry import Benchmark, Prepared, Setting
from hocket.errors import InvalidState


def _make(setting: Setting) -> Prepared:
    raise InvalidState("startup is measured from outside the job, not by its ranks")


BENCHMARKS = (
    Benchmark(
        "startup", "Startup", "us", _make, "the processes of a job start, open the library, run a barrier, and exit",
        ("init", "hello"), "whole job", has_sizes=False,
    ),
)  # fmt: skip
