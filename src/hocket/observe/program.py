"""What a program records of itself: regions, marks and counters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar, overload

from hocket import _native

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def region(name: str, step: int | None = None) -> AbstractContextManager[Any]:
    """Record a part of the program, from its begin to its end.

    Each costs about 200 ns. Where regions take more than 1 % of the time, only some of them are recorded; each then
    says for how many it stands.

    Args:
        name: of the region; of the first 4,096 different names.
        step: number of the training step or iteration.

    Raises:
        TypeError: `name` is no string, or empty.
        ValueError: `step` is no integer, or negative.

    Examples:
        >>> from hocket import observe
        >>> with observe.region("forward", step=7):
        ...     y = np.ones(3) * 2
    """
    return _native.region(name, step)


def mark(name: str, step: int | None = None) -> None:
    """Record a moment.

    Args:
        name: of the moment; of the first 4,096 different names.
        step: number of the training step or iteration.

    Raises:
        TypeError: `name` is no string, or empty.
        ValueError: `step` is no integer, or negative.

    Examples:
        >>> from hocket import observe
        >>> observe.mark("data loaded", step=7)
    """
    _native.mark(name, step)


def counter(name: str, value: float) -> None:
    """Record the present value of something that changes, such as a loss or the length of a queue.

    Args:
        name: of the counter; of the first 4,096 different names.
        value: a number.

    Raises:
        TypeError: `name` is no string, or empty, or `value` is no number.

    Examples:
        >>> from hocket import observe
        >>> observe.counter("loss", 0.25)
    """
    _native.counter(name, value)


@overload
def traced(function: Callable[_Arguments, _Result], /) -> Callable[_Arguments, _Result]: ...
@overload
def traced(*, name: str | None = None) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]: ...
def traced(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Callable[..., Any]:
    """Make every call of a function a region.

    Args:
        function: the function; left out where options are given.
        name: of the region; None: the function's qualified name.

    Examples:
        >>> from hocket import observe
        >>> @observe.traced
        ... def forward(x):
        ...     return x * 2
        >>> forward(3)
        6
    """
    if function is None:
        return functools.partial(_traced, name=name)
    return _traced(function, name)


def _traced(function: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    label = name or function.__qualname__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _native.region(label):
            return function(*args, **kwargs)

    return call
