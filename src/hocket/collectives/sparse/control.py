"""Words that ranks add up before they send elements, so that all know whether they agree."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hocket.errors import CollectiveMismatch, NotFinite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hocket.collectives.residual import ResidualState
    from hocket.comm import Communicator

_NUM_HASHES = 2
_HASH_BITS = 24
"""So that the sum of the squares of all ranks' hashes fits into 63 bits, for up to 32,768 ranks."""
NUM_WORDS = 2 * _NUM_HASHES + 1


def control_words(request: object, is_unfit: bool) -> NDArray[np.int64]:
    """Return the words of one rank.

    Args:
        request: what must be equal on all ranks, by its repr.
        is_unfit: whether this rank has values that it cannot send.

    Examples:
        >>> from hocket.collectives.sparse.control import control_words, do_agree, num_unfit
        >>> words = control_words(("k", 10), False) + control_words(("k", 10), True)
        >>> do_agree(words, 2), num_unfit(words)
        (True, 1)
        >>> do_agree(control_words(("k", 10), False) + control_words(("k", 20), False), 2)
        False
    """
    hashes = _hashes(repr(request))
    return np.array([*hashes, *(each * each for each in hashes), int(is_unfit)], np.int64)


@lru_cache(256)
def _hashes(text: str) -> list[int]:
    digest = int.from_bytes(sha256(text.encode()).digest()[: _NUM_HASHES * _HASH_BITS // 8])
    return [digest >> _HASH_BITS * each & ((1 << _HASH_BITS) - 1) for each in range(_NUM_HASHES)]


def do_agree(words: NDArray[np.int64], num_ranks: int) -> bool:
    """Whether the requests of all ranks are equal, by the sums of their words.

    The mean of squares is the square of the mean only if all are equal.
    """
    sums, squares = words[:_NUM_HASHES].tolist(), words[_NUM_HASHES : 2 * _NUM_HASHES].tolist()
    return all(each * each == num_ranks * square for each, square in zip(sums, squares, strict=True))


def num_unfit(words: NDArray[np.int64]) -> int:
    """The number of ranks that cannot send, by the sums of the words."""
    return int(words[2 * _NUM_HASHES])


def raise_mismatch(comm: Communicator, what: str, own: str, how: dict[str, Any]) -> NoReturn:
    """Tell how the requests of ranks differ; called by all ranks.

    Args:
        comm: a communicator of all ranks.
        what: name of the operation.
        own: this rank's request.
        how: timeout and backend of operations.

    Raises:
        CollectiveMismatch: always.
    """
    ranks: dict[str, list[int]] = {}
    for rank, each in enumerate(comm.all_gather_object(own, **how)):
        ranks.setdefault(each, []).append(rank)
    told = "; ".join(
        f"rank{'s' * (len(each) > 1)} {', '.join(map(str, each))}: {request}" for request, each in ranks.items()
    )
    raise CollectiveMismatch(f"the ranks differ in their {what}: {told}")


def raise_not_finite(
    comm: Communicator, total: NDArray[np.float32], state: ResidualState | None, how: dict[str, Any]
) -> NoReturn:
    """Name the elements that are NaN or infinite, with their ranks; called by all ranks.

    Args:
        comm: a communicator of all ranks.
        total: this rank's array.
        state: of the array, which has its name.
        how: timeout and backend of operations.

    Raises:
        NotFinite: always.
    """
    bad = np.flatnonzero(~np.isfinite(total))
    name = state.name if state is not None and state.name else "x"
    own = (name, int(bad[0]), str(total[bad[0]]), len(bad)) if len(bad) else None
    told = [
        f"rank {rank} has {each[2]} at element {each[1]} of {each[0]}" + f", and {each[3] - 1} more" * (each[3] > 1)
        for rank, each in enumerate(comm.all_gather_object(own, **how))
        if each is not None
    ]
    raise NotFinite(
        f"{'; '.join(told)}: nothing was sent, and no residual has changed. nonfinite='pass' gives the sum to all ranks"
    )
