"""Names of mpi4py and torch.distributed: they are not attributes, and the error gives hocket's name or a reason."""

from __future__ import annotations

import re

import pytest

import hocket as hk
from hocket.comm.foreign_names import HERE, NOT_HERE

from ..naming import Given, assert_names

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("name", sorted(HERE))
def test_what_is_told_is_there(name: str) -> None:
    own_name = re.match(r"[a-z_]+", HERE[name])
    assert own_name is not None and hasattr(hk.Communicator, own_name.group())
    assert not hasattr(hk.Communicator, name)


def test_they_are_no_attributes() -> None:
    with hk.init(backends="shm") as comm:
        assert not hasattr(comm, "Get_rank") and "Get_rank" not in dir(comm) and "all_reduce" in dir(comm)
        with pytest.raises(AttributeError) as raised:
            comm.Bcast(None)  # type: ignore[attr-defined]
        assert_names(str(raised.value), "Bcast", Given("comm.broadcast(x, root)"))
        with pytest.raises(AttributeError) as raised:
            comm.Create_cart([2, 2])  # type: ignore[attr-defined]
        assert_names(str(raised.value), "Create_cart", "batch()")


def test_every_name_of_mpi4py_has_an_answer() -> None:
    intracomm = pytest.importorskip("mpi4py.MPI").Intracomm
    ours = set(dir(hk.Communicator))
    unknown = {name for name in dir(intracomm) if not name.startswith("_")} - ours - HERE.keys() - NOT_HERE.keys()
    assert unknown == set()
    assert not HERE.keys() & NOT_HERE.keys()
