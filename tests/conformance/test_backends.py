"""The same product over foreign libraries. Between two ranks their sums are bitwise equal to NumPy's, too."""

from __future__ import annotations

from collections import Counter

import pytest

import hocket as hk
from hocket.backends import declarations

from ..backends import ALL, limit_threads
from ..load import scaled
from ..tier import sample
from .cases import all_cases
from .product import run_async, run_blocking, some_large_cases


def _run(shm_only: hk.Communicator, backend: str, form: str) -> Counter[str]:
    shm_only.finalize()
    limit_threads(backend)
    comm = hk.init(backends=["shm", backend], timeout=scaled(60))
    comm.policy = hk.Policy.fixed({"*": backend})
    run = run_blocking if form == "blocking" else run_async
    declared = declarations()[backend].tested
    run(comm, sample(all_cases(comm.size)[:: declared.one_case_in if declared else 1], 500))
    used = Counter(record.backend for record in comm.records())
    run(comm, some_large_cases(comm.size), seed=1)
    return used


@pytest.mark.timeout(300)
@pytest.mark.parametrize("form", ["blocking", "async"])
@pytest.mark.parametrize("backend", [name for name in ALL if name != "shm"])
def test_product(backend: str, form: str) -> None:
    for used in hk.spawn(_run, 2, backend, form, timeout=280):
        # shm carries operations that the library would compute differently: avg of 16-bit floats, int16 for gloo.
        assert set(used) <= {backend, "shm"}
        assert used[backend] > 0.7 * used.total()
