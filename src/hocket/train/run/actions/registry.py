"""Which function executes actions of which kind."""

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

_found: dict[str, Handler] = {}


def executes(*kinds: str) -> Callable[[Handler], Handler]:
    """Register the decorated function: (step, action) -> None, called when it is the action's turn on its rank.

    Raises:
        InvalidArgument: another one executes such actions.
        InvalidType: it cannot be called so.
    """

    def register(handler: Handler) -> Handler:
        if not takes(handler, "step", "action"):
            raise InvalidType(
                f"what executes {', '.join(kinds)} must be a function of step and action, not {handler!r}"
            )
        for kind in kinds:
            if (other := _found.get(kind, handler)) is not handler:
                raise InvalidArgument(f"actions of kind {kind!r} are executed by {other.__module__} already")
            _found[kind] = handler
        return handler

    return register


@lru_cache
def _load() -> None:
    discover(folder, ("registry",), into=_found)


def find_handlers(names: Iterable[str]) -> dict[str, Handler]:
    """Return what executes actions of these kinds: what was registered here, or else what a kind itself declares.

    Raises:
        InvalidArgument: a kind has nothing; names it, and those that have.
    """
    _load()
    there = {name: kind.execute for name, kind in kinds().items() if kind.execute is not None} | _found
    found = {}
    for name in names:
        if name not in there:
            raise InvalidArgument(
                f"nothing executes actions of kind {name!r}; see hocket.train.executes. There is something for "
                f"{', '.join(sorted(there))}"
            )
        found[name] = there[name]
    return found
