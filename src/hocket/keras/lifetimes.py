"""How long values have to be kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def last_uses(names: Sequence[Iterable[str]], kept: Iterable[str]) -> list[list[str]]:
    """Return of each step the names that no later one has.

    Args:
        names: of the values that each step makes or uses.
        kept: names that are left out.
    """
    found: list[list[str]] = []
    seen = set(kept)
    for of_step in reversed(names):
        found.append([name for name in dict.fromkeys(of_step) if name not in seen])
        seen.update(found[-1])
    return found[::-1]
