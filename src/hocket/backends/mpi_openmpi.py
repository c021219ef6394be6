"""Open MPI, which needs its own launcher, by name: also beside the other one in the same process."""

from __future__ import annotations

from typing import ClassVar

from hocket.backends import _mpi
from hocket.backends.mpi import MpiBackend


class OpenMpiBackend(MpiBackend):
    name: ClassVar[str] = "mpi:openmpi"
    is_optional: ClassVar[bool] = True

    @classmethod
    def family(cls) -> str:
        return "openmpi"

    @classmethod
    def prepare(cls) -> None:
        _mpi.allow_two(cls.family())


ADAPTER = OpenMpiBackend
