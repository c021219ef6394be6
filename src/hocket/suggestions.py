"""What someone meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a question to put behind an error's message, or nothing where no known name is like it.

    Example:
        >>> did_you_mean("summ", ["sum", "prod"])
        "; did you mean 'sum'?"
        >>> did_you_mean("x", ["sum", "prod"])
        ''
    """
    if not isinstance(name, str):
        return ""
    by_lower = {each.lower().replace("-", "_"): each for each in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""
