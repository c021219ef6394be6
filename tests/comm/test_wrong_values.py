"""Values that are far from valid raise hocket's errors, which name them, and not errors of Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import hocket as hk
from hocket.errors import InvalidArgument, InvalidType, ResourceExhausted
from hocket.trace.traffic import Traffic

from ..naming import raises

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def alone() -> Iterator[hk.Communicator]:
    with hk.init(backends="shm") as comm:
        yield comm


@pytest.mark.parametrize("backends", ["mpi", ["mpi"], {"*": 3}, {3: "mpi"}, None, 5])
def test_policies_that_are_no_mapping(backends: Any) -> None:
    with raises(InvalidType, names=("'*'", repr(backends))):
        hk.Policy.fixed(backends)


@pytest.mark.parametrize("dtype", ["float64", torch.float64])
@pytest.mark.parametrize("shape", [1 << 62, 10**30, (1 << 40, 1 << 40)])
def test_arrays_beyond_any_address(alone: hk.Communicator, shape: Any, dtype: Any) -> None:
    nbytes = 8 * int(np.prod(np.array(shape, dtype=object)))
    for make in (alone.empty, alone.zeros):
        with raises(ResourceExhausted, names=(str(nbytes),)):
            make(shape, dtype)


@pytest.mark.parametrize("op", [1, None, "nope", [], "SUM"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_reduce_coalesced", "reduce", "scan", "reduce_scatter"])
def test_reductions_that_there_are_not(alone: hk.Communicator, kind: str, op: Any) -> None:
    x = np.ones(3)
    arguments: dict[str, tuple[Any, ...]] = {"all_reduce_coalesced": ([x],), "reduce": (x, 0), "reduce_scatter": (x, x)}
    with raises(InvalidArgument, names=("'sum'", "'lxor'", repr(op))):
        getattr(alone, kind)(*arguments.get(kind, (x,)), op=op)


def test_a_reduction_of_the_users_is_for_one_array(alone: hk.Communicator) -> None:
    hk.register_reduction("largest_of_this_test", np.maximum)
    with raises(InvalidArgument, names=("all_reduce_coalesced", "'largest_of_this_test'", "'sum'")):
        alone.all_reduce_coalesced([np.ones(3)], "largest_of_this_test")


@pytest.mark.parametrize("num_ranks", [0, -1, 1 << 31, 10**400, True, "2", 2.0, None])
def test_ranks_that_there_cannot_be(num_ranks: Any) -> None:
    with raises(InvalidArgument, names=("num_ranks", str((1 << 31) - 1))):
        Traffic(name="a", num_ranks=num_ranks, source="b", steps=())
