"""A pair of libraries: each carries a part of the array of one operation."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import ClassVar

from hocket import _native
from hocket.backends.base import Backend, BackendJob, Lanes, Shares
from hocket.errors import BackendUnavailable


class SplitBackend(Backend):
    """Two started libraries on separate lanes; the policy sets the share of each (`Policy.shares`)."""

    is_optional: ClassVar[bool] = True

    def __init__(self, libraries: Sequence[Backend]) -> None:
        self._libraries = libraries
        self._shares: dict[int, _native.Shares] = {}

    @classmethod
    def find_obstacle(cls) -> str | None:
        names = cls.name.split("+")
        if len(set(names)) != 2 or len(names) != 2:
            return f"an operation can be split over two different libraries only, not over {cls.name!r}"
        return None

    @classmethod
    def start(cls, job: BackendJob) -> Backend:
        started = {library.name: library for library in job.up}
        missing = [name for name in cls.name.split("+") if name not in started]
        if missing:
            raise BackendUnavailable(f"{missing[0]} has not started")
        return cls([started[name] for name in cls.name.split("+")])

    @property
    def description(self) -> str:
        return "each operation is split over both"

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        first, second = (
            library.open_lanes(members, self._key_of_part(key, library), timeout) for library in self._libraries
        )
        shares = self._shares[key] = _native.Shares()
        return Lanes(
            *(
                _native.split_lane(self.name, one, other, shares)
                for one, other in (
                    (first.collective, second.collective),
                    (first.point_to_point, second.point_to_point),
                    (first.schedules, second.schedules),
                )
            )
        )

    def set_shares(self, key: int, shares: Shares) -> None:
        if key in self._shares:  # otherwise the communicator was finalized
            self._shares[key].set({kind: list(ranges) for kind, ranges in shares.items()})

    def _key_of_part(self, key: int, library: Backend) -> int:
        """Return the key of a part's lanes; it differs from the library's own key and from those of other pairs."""
        digest = hashlib.blake2b(f"{key} {self.name} {library.name}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") | 2

    def close_lanes(self, key: int) -> None:
        self._shares.pop(key, None)
        for library in self._libraries:
            library.close_lanes(self._key_of_part(key, library))

    def why_cannot_shrink(self, members: Collection[int]) -> str | None:
        reasons = (library.why_cannot_shrink(members) for library in self._libraries)
        return next((reason for reason in reasons if reason is not None), None)


def make_split(name: str) -> type[SplitBackend]:
    """Return the adapter of a pair of libraries.

    Args:
        name: both names, joined by a plus.
    """
    return type("SplitBackend", (SplitBackend,), {"name": name})
