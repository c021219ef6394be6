"""Persistent collectives, which read their arguments once: prepared operations of hocket, persistent ones of MPI."""

from __future__ import annotations

from functools import partial

from hocket.bench.families.collectives import OMB_NAMES, OnMemory, benchmark_of
from hocket.bench.registry import Setting


def _make(op: str, setting: Setting) -> OnMemory:
    return OnMemory(setting, op, bind=setting.driver.prepare)


BENCHMARKS = tuple(
    benchmark_of(
        op,
        f"persistent_{op}",
        f"Persistent {OMB_NAMES[op].capitalize()}",
        partial(_make, op),
        f"persistent {op}, which reads its arguments once",
        [f"{OMB_NAMES[op]}_persistent"],
        family="persistent collective",
        is_windowed=True,
        takes_objects=False,
    )
    for op in OMB_NAMES
)
