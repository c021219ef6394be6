"""torch tensors that an operation cannot use."""

from __future__ import annotations

from typing import Any

import pytest

import hocket as hk
from hocket.errors import InvalidArgument, InvalidType, UnsupportedDtype

from .bad_calls import Outcome, bad, find_faults, run_bad_calls

_NUM_RANKS = 2
Tensor = Any


def _zeros(*shape: int, **options: Any) -> Tensor:
    import torch

    return torch.zeros(*shape, **options)


def _typed(name: str) -> Tensor:
    import torch

    return torch.zeros(4, dtype=getattr(torch, name))


def _in_inference_of_grad(c: hk.Communicator) -> None:
    import torch

    with torch.enable_grad():
        c.all_reduce(torch.zeros(4, requires_grad=True) * 2)  # not a leaf, but it requires grad too


_CALLS = {
    "meta all_reduce": bad(lambda c: c.all_reduce(_zeros(4, device="meta")), InvalidType, "x", "meta", "cpu"),
    "meta send": bad(lambda c: c.send(_zeros(4, device="meta"), 0), InvalidType, "x", "meta"),
    "meta out": bad(lambda c: c.all_gather(_zeros(8, device="meta"), _zeros(4)), InvalidType, "out", "meta"),
    "sparse": bad(lambda c: c.all_reduce(_zeros(4, 4).to_sparse()), InvalidType, "x", "sparse_coo", "dense"),
    "sparse csr": bad(lambda c: c.broadcast(_zeros(4, 4).to_sparse_csr(), 0), InvalidType, "x", "sparse_csr", "dense"),
    "zero stride": bad(lambda c: c.all_reduce(_zeros(1).expand(4)), InvalidArgument, "x", "stride", "copy"),
    "zero stride out": bad(lambda c: c.all_gather(_zeros(1).expand(8), _zeros(4)), InvalidArgument, "out", "stride"),
    "grad all_reduce": bad(
        lambda c: c.all_reduce(_zeros(4, requires_grad=True)),
        InvalidArgument,
        "x",
        "no_grad",
        "detach",
    ),
    "grad of an expression": bad(_in_inference_of_grad, InvalidArgument, "x", "no_grad"),
    "grad recv": bad(lambda c: c.recv(_zeros(4, requires_grad=True), 0), InvalidArgument, "x", "no_grad"),
    "grad reduce": bad(lambda c: c.reduce(_zeros(4, requires_grad=True), c.rank), InvalidArgument, "no_grad"),
    "grad out": bad(
        lambda c: c.all_gather(_zeros(8, requires_grad=True), _zeros(4)), InvalidArgument, "out", "no_grad"
    ),
    **{
        f"type {name}": bad(
            lambda c, name=name: c.all_reduce(_typed(name)), UnsupportedDtype, "x", name, "float16", "bool"
        )
        for name in ("complex32", "float8_e5m2", "float8_e4m3fn")
    },
    "types differ": bad(
        lambda c: c.all_gather(_zeros(8), _typed("float64")), InvalidArgument, "out", "float32", "float64"
    ),
    "avg of int": bad(lambda c: c.all_reduce(_typed("int32"), "avg"), UnsupportedDtype, "avg", "int32"),
}


def _run(comm: hk.Communicator) -> dict[str, Outcome]:
    return run_bad_calls(comm, _CALLS)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Outcome]]:
    return hk.spawn(_run, _NUM_RANKS, timeout=60)


@pytest.mark.timeout(70)
@pytest.mark.parametrize("name", _CALLS)
def test_bad_tensor(outcomes: list[dict[str, Outcome]], name: str) -> None:
    assert find_faults(_CALLS[name], [of_rank[name] for of_rank in outcomes]) == []


def _run_grad(comm: hk.Communicator) -> list[float]:
    """Uses that autograd allows: reading, or writing while it is off."""
    import torch

    x = torch.ones(2, requires_grad=True)
    out = torch.zeros(comm.size, 2)
    comm.all_gather(out, x)
    comm.broadcast(x if comm.rank == 0 else out[0], 0)
    comm.reduce(x if comm.rank else out[0], 0)
    with torch.no_grad():
        comm.all_reduce(x)
    comm.all_reduce(x.detach())
    return [*out[0].tolist(), *x.tolist()]


@pytest.mark.timeout(60)
def test_tensors_that_require_grad_can_be_read() -> None:
    assert hk.spawn(_run_grad, 2, timeout=50) == [[2.0, 2.0, 4.0, 4.0], [1.0, 1.0, 4.0, 4.0]]
