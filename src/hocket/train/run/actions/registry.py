"""The registry of functions that execute actions, by the kind of action."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import hocket.train.run.actions as folder
from hocket.discovery import discover, takes
from hocket.errors import InvalidArgument, InvalidType
from hocket.pipeline.action import Action
from hocket.pipeline.kind import kinds

if TYPE_CHECKING:
    from hocket.train.run.step import Step

Handler: TypeAlias = Callable[["Step", Action], None]

_handlers: dict[str, Handler] = {}


def executes(*kinds: str) -> Callable[[Handler], Handler]:
    """Register the decorated function for kinds of actions: (step, action) -> None, called for each such action.

    Args:
        kinds: names of kinds of actions.

    Raises:
        InvalidArgument: another function executes such actions already.
        InvalidType: the function does not take (step, action).

    Examples:
        >>> @hk.train.executes("LOG")
        ... def log(step, action):
        ...     print(f"executing {action}")
        >>> log(None, "LOG of stage 0")  # the decorator returns the function itself
        executing LOG of stage 0
        >>> hk.train.executes("LOG")(lambda step, action: None)
        Traceback (most recent call last):
            ...
        hocket.errors.InvalidArgument: actions of kind 'LOG' are executed by ... already
    """

    def register(handler: Handler) -> Handler:
        if not takes(handler, "step", "action"):
            raise InvalidType(
                f"the function that executes {', '.join(kinds)} must take (step, action), not be {handler!r}"
            )
        for kind in kinds:
            if (other := _handlers.get(kind, handler)) is not handler:
                raise InvalidArgument(f"actions of kind {kind!r} are executed by {other.__module__} already")
            _handlers[kind] = handler
        return handler

    return register


@lru_cache
def _load() -> None:
    discover(folder, ("registry",), into=_handlers)


def find_handlers(names: Iterable[str]) -> dict[str, Handler]:
    """Return the functions for these kinds: the registered ones, or those that the kinds declare themselves.

    Raises:
        InvalidArgument: a kind has no function; the message names it, and the kinds that have one.
    """
    _load()
    known = {name: kind.execute for name, kind in kinds().items() if kind.execute is not None} | _handlers
    handlers = {}
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"no function executes actions of kind {name!r}: register one with hocket.train.executes. Kinds with a "
                f"function: {', '.join(sorted(known))}"
            )
        handlers[name] = known[name]
    return handlers
