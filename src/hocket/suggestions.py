"""What someone meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from hocket.errors import InvalidType

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


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
    # Half of the letters in common is no likeness of words that begin alike, such as those of hocket's variables.
    cutoff = 0.75 if name.startswith("HOCKET_") else 0.6
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the message for a name that does not exist: what there is, and what may have been meant.

    Example:
        >>> unknown("reduction", "summ", ["sum", "prod"])
        "there is no reduction 'summ'; there are sum, prod; did you mean 'sum'?"
    """
    names = list(known)
    return f"there is no {what} {name!r}; there are {', '.join(names)}{did_you_mean(name, names)}"


def names_wrong_keywords(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Have a function that is given a keyword it does not take say which of its own was meant.

    Raises:
        InvalidType: from the function, before it does anything.
    """
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: _Given.args, **options: _Given.kwargs) -> _Result:
        for name in options:
            if name not in known:
                raise InvalidType(
                    f"{function.__name__}() takes {', '.join(known)}, and no {name!r}{did_you_mean(name, known)}"
                )
        return function(*args, **options)

    return checked
