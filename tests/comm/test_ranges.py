"""The range of a policy that contains a size: the upper limit belongs to the range, as in the native core."""

from __future__ import annotations

import pytest

import hocket as hk
from hocket.comm.policy import LARGEST_NBYTES, Choices, DefaultPolicy, Group, Range, range_of

_RANGES = (Range(64, ("gloo",)), Range(LARGEST_NBYTES, ("shm",)))


@pytest.mark.parametrize(("nbytes", "carrier"), [(0, "gloo"), (64, "gloo"), (65, "shm"), (LARGEST_NBYTES, "shm")])
def test_the_largest_size_of_a_range_is_in_it(nbytes: int, carrier: str) -> None:
    assert range_of(_RANGES, nbytes).ranking == (carrier,)


class _TwoRanges(DefaultPolicy):
    def choices(self, group: Group) -> Choices:
        return {("broadcast", "moved"): _RANGES}


def _chosen(comm: hk.Communicator) -> list[str]:
    comm.finalize()
    comm = hk.init(backends=["shm", "gloo"], policy=_TwoRanges(), timeout=30)
    chosen = [comm.explain("broadcast", nbytes).chosen for nbytes in (64, 65)]
    for nbytes in (64, 65):
        comm.broadcast(bytearray(nbytes), 0)
        chosen.append(comm.records()[-1].backend)
    comm.finalize()
    return chosen


def test_the_native_core_has_the_same_border() -> None:
    assert hk.spawn(_chosen, 2, timeout=50) == [["gloo", "shm"] * 2] * 2
