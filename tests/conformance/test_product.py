"""Every operation with every data type, reduction, root and border size; one job per number of ranks and form."""

from __future__ import annotations

import pytest

import hocket as hk
from hocket import _native

from .product import run_async, run_blocking, some_cases, some_large_cases

_ISAS = ("scalar", "avx2", "avx512")


def _run_product(comm: hk.Communicator, blocking: bool) -> tuple[int, str]:
    cases = some_cases(comm.size)
    return run_blocking(comm, cases) if blocking else run_async(comm, cases), _native.ISA


def _run_with_progress_thread(comm: hk.Communicator) -> int:
    _native.start_progress_thread()
    cases = some_cases(comm.size)
    return run_async(comm, cases[::2]) + run_blocking(comm, cases[1::2])


def _run_large(comm: hk.Communicator) -> int:
    cases = some_large_cases(comm.size)
    return run_blocking(comm, cases) + run_async(comm, cases, seed=1)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("form", ["blocking", "async"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_product(num_ranks: int, form: str) -> None:
    done = hk.spawn(_run_product, num_ranks, form == "blocking", timeout=150)
    assert done == [(len(some_cases(num_ranks)), _native.ISA)] * num_ranks


@pytest.mark.timeout(200)
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_product_with_progress_thread(num_ranks: int) -> None:
    done = hk.spawn(_run_with_progress_thread, num_ranks, timeout=150)
    assert done == [len(some_cases(num_ranks))] * num_ranks


@pytest.mark.timeout(200)
@pytest.mark.parametrize("isa", _ISAS[: _ISAS.index(_native.ISA)])
def test_product_without_the_widest_registers(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_ISA", isa)
    done = hk.spawn(_run_product, 3, True, timeout=150)
    assert done == [(len(some_cases(3)), isa)] * 3


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_chunk_borders(num_ranks: int) -> None:
    done = hk.spawn(_run_large, num_ranks, timeout=100)
    assert done == [2 * len(some_large_cases(num_ranks))] * num_ranks
