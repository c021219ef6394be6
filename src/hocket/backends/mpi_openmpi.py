"""Open MPI by name; can be used beside MPICH in the same process. Between hosts it needs its own launcher."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from hocket.backends import _mpi
from hocket.backends._declaration import Finding, LinkSpec, Tested
from hocket.backends.mpi import MpiBackend


class OpenMpiBackend(MpiBackend):
    name: ClassVar[str] = "mpi:openmpi"
    is_optional: ClassVar[bool] = True
    link: ClassVar[LinkSpec | None] = None
    link_between_hosts: ClassVar[LinkSpec | None] = None
    launcher: ClassVar[str] = "openmpi"
    tested: ClassVar[Tested | None] = None  # tests/mixing/test_two_mpis.py

    @classmethod
    def family(cls) -> str:
        return "openmpi"

    @classmethod
    def diagnose(cls) -> Iterable[Finding]:
        return ()  # "mpi" reports for both

    @classmethod
    def prepare(cls) -> None:
        _mpi.allow_two(cls.family())


ADAPTER = OpenMpiBackend
