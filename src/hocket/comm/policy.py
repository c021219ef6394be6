"""Which backend carries an operation that names none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hocket import _native
from hocket.errors import InvalidArgument

LARGEST_NBYTES = (1 << 64) - 1
_INTERNAL = ("split", "dup", "group")
CHOOSABLE = tuple(name for name in _native.OP_NAMES if name not in _INTERNAL)
"""The operations a policy has a say in."""


@dataclass(frozen=True)
class Range:
    """What is chosen up to a size.

    Args:
        most_nbytes: the largest operation of this range, in bytes as in `Record.nbytes`.
        ranking: names of backends, best first.
    """

    most_nbytes: int
    ranking: tuple[str, ...]


Choices = Mapping[tuple[str, str], Sequence[Range]]
"""By (operation, class of types): ranges in order of size, the last of them open."""


class Policy(ABC):
    """A rule for choosing backends, from facts that are equal on all members (rule R8)."""

    @staticmethod
    def fixed(backends: Mapping[str, str]) -> Policy:
        """Make a policy that names one backend per operation.

        Args:
            backends: name of a backend by operation, e.g. ``{"all_to_all": "mpi", "*": "shm"}``; "*" stands for all
                that are not named.
        """
        return _FixedPolicy(dict(backends))

    @abstractmethod
    def choices(self, size: int, backends: Sequence[str]) -> Choices:
        """Return what to choose for a communicator.

        Args:
            size: ranks of the communicator.
            backends: names of those it has.
        """


class DefaultPolicy(Policy):
    """The backends in their own order."""

    def choices(self, size: int, backends: Sequence[str]) -> Choices:
        return {}


class _FixedPolicy(Policy):
    def __init__(self, backends: Mapping[str, str]) -> None:
        for kind in backends:
            if kind != "*" and kind not in CHOOSABLE:
                raise InvalidArgument(
                    f"{kind!r} is no operation; there are {', '.join(CHOOSABLE)}, and '*' for the rest"
                )
        self._backends = dict(backends)

    def choices(self, size: int, backends: Sequence[str]) -> Choices:
        for kind, name in self._backends.items():
            if name not in backends:
                raise InvalidArgument(f"the policy names {name!r} for {kind}, but there are {', '.join(backends)}")
        named = {kind: self._backends.get(kind, self._backends.get("*")) for kind in CHOOSABLE}
        return {
            (kind, dtypes): [Range(LARGEST_NBYTES, (name,))]
            for kind, name in named.items()
            if name is not None
            for dtypes in _native.DTYPE_CLASS_NAMES
        }
