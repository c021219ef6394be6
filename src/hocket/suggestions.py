"""Suggestions for names that do not exist: "did you mean"."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

from hocket.errors import InvalidArgument, InvalidType

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a suggestion to append to an error message, or "" if no known name is similar.

    Examples:
        >>> did_you_mean("summ", ["sum", "prod"])
        "; did you mean 'sum'?"
        >>> did_you_mean("x", ["sum", "prod"])
        ''
    """
    if not isinstance(name, str):
        return ""
    by_lower = {each.lower().replace("-", "_"): each for each in known}
    # hocket's variables share a prefix, so unrelated names have many letters in common: require more.
    cutoff = 0.75 if name.startswith("HOCKET_") else 0.6
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[found[0]]!r}?" if found else ""


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """Return the message for an unknown name, with all known names and a suggestion.

    Examples:
        >>> unknown("reduction", "summ", ["sum", "prod"])
        "there is no reduction 'summ'; there are sum, prod; did you mean 'sum'?"
    """
    names = list(known)
    return f"there is no {what} {name!r}; there are {', '.join(names)}{did_you_mean(name, names)}"


def check_known(what: str, name: object, known: Collection[str]) -> None:
    """Check that a name is one of the known ones.

    Raises:
        InvalidArgument: it is not; lists the known ones.

    Examples:
        >>> check_known("reduction", "summ", ["sum", "prod"])
        Traceback (most recent call last):
        hocket.errors.InvalidArgument: there is no reduction 'summ'; there are sum, prod; did you mean 'sum'?
    """
    if name not in known:
        raise InvalidArgument(unknown(what, name, known))


def names_wrong_keywords(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorate a function so that an unknown keyword argument raises an error with a suggestion.

    Raises:
        InvalidType: raised by the decorated function, before it runs.
    """
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: _Given.args, **options: _Given.kwargs) -> _Result:
        for name in options:
            if name not in known:
                raise InvalidType(
                    f"{function.__name__}() takes {', '.join(known)}, not {name!r}{did_you_mean(name, known)}"
                )
        return function(*args, **options)

    return checked
