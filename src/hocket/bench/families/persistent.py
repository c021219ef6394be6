"""Collectives whose arguments are read once: hocket's prepared operations, and MPI's persistent ones."""

from __future__ import annotations

from functools import partial

from hocket.bench.families.collectives import OMB_NAMES, REDUCING, OnMemory
from hocket.bench.registry import Benchmark, Setting
from hocket.errors import InvalidArgument


def _make(op: str, setting: Setting) -> OnMemory:
    if op not in setting.driver.binders(setting.point.api):
        raise InvalidArgument(f"{setting.driver.name} has no {op} by {setting.point.api}")
    return OnMemory(setting, op, bind=setting.driver.prepare)


BENCHMARKS = tuple(
    Benchmark(
        f"persistent_{op}",
        f"Persistent {OMB_NAMES[op].capitalize()}",
        "us",
        partial(_make, op),
        f"{op}, its arguments read once",
        (f"{OMB_NAMES[op]}_persistent",),
        "persistent collective",
        op=op,
        reduces=op in REDUCING,
        has_sizes=op != "barrier",
        least_nbytes=4 if op in REDUCING else 1,
        is_windowed=True,
        takes_objects=False,
    )
    for op in OMB_NAMES
)
