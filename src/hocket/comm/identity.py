"""Numbers and names that must be equal on all members of a new communicator."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from typing import SupportsIndex

from hocket.comm.messages import as_list
from hocket.errors import InvalidArgument, InvalidType

LARGEST_INT64 = 2**63 - 1


def read_int64(value: SupportsIndex, least: int, rule: str) -> int:
    """Return any kind of integer, such as NumPy's, as an int. Raises InvalidArgument with `rule` for other values."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{rule}, not {value!r}") from None
    if not least <= number <= LARGEST_INT64:
        raise InvalidArgument(f"{rule}, not {value!r}")
    return number


def derive_key(*parts: object) -> int:
    """Return the 64-bit name by which the members of a new communicator find their shared memory; never 0 or 1."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 2


def read_members(ranks: Sequence[int], own: int, size: int) -> list[int]:
    """Return the ranks of a group as ints.

    Args:
        ranks: ranks of the communicator that the group is made from.
        own: this rank.
        size: number of ranks of that communicator.

    Raises:
        InvalidType, InvalidArgument: a rank is not an int, out of range or given twice, or this rank is missing.
    """
    given = as_list("ranks", "ints", ranks)
    try:
        members = [operator.index(rank) for rank in given]
    except TypeError:
        raise InvalidType(f"ranks must be ints, not {ranks!r}") from None
    if any(not 0 <= rank < size for rank in members):
        raise InvalidArgument(f"ranks {members} must lie between 0 and {size - 1}")
    if len(set(members)) != len(members):
        raise InvalidArgument(f"ranks {members} name a rank twice")
    if own not in members:
        raise InvalidArgument(f"rank {own} is not among {members}; only members call group()")
    return members
