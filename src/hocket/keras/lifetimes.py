"""The lifetimes of values in a sequence of steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def last_uses(names: Sequence[Iterable[str]], kept: Iterable[str]) -> list[list[str]]:
    """Return for each step the names of the values that no later step uses.

    Args:
        names: for each step, names of the values that it computes or uses.
        kept: names that are left out of the result.
    """
    last: list[list[str]] = []
    seen = set(kept)
    for of_step in reversed(names):
        last.append([name for name in dict.fromkeys(of_step) if name not in seen])
        seen.update(last[-1])
    return last[::-1]
