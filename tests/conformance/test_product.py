"""Every operation with every data type, reduction, root and border size, one job per number of ranks and form."""

from __future__ import annotations

import pytest

import hocket as hk

from .cases import all_cases
from .product import run_async, run_blocking


def _run_product(comm: hk.Communicator, blocking: bool) -> int:
    cases = all_cases(comm.size)
    return run_blocking(comm, cases) if blocking else run_async(comm, cases)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("form", ["blocking", "async"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_product(num_ranks: int, form: str) -> None:
    done = hk.spawn(_run_product, num_ranks, form == "blocking", timeout=150)
    assert done == [len(all_cases(num_ranks))] * num_ranks
