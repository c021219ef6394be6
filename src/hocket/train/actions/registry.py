"""Which function executes actions of which kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import hocket.train.actions as folder
from hocket.discovery import discover
from hocket.errors import InvalidArgument
from hocket.pipeline.action import Action
from hocket.pipeline.schedule import PipelineSchedule

if TYPE_CHECKING:
    from hocket.train.step import Step

Handler: TypeAlias = Callable[["Step", Action], None]

_found: dict[str, Handler] = {}


def executes(*kinds: str) -> Callable[[Handler], Handler]:
    """Register the decorated function: (step, action) -> None, called when it is the action's turn on its rank.

    Raises:
        InvalidArgument: another one executes such actions.
    """

    def register(handler: Handler) -> Handler:
        for kind in kinds:
            if _found.get(kind, handler) is not handler:
                raise InvalidArgument(f"there is something that executes actions of kind {kind!r} already")
            _found[kind] = handler
        return handler

    return register


@lru_cache
def _load() -> None:
    discover(folder)


def find_handler(kind: str) -> Handler:
    """Return what executes actions of a kind."""
    return _found[kind]


def check_kinds(schedule: PipelineSchedule) -> None:
    """Check that there is somebody to execute each action.

    Raises:
        InvalidArgument: a kind has nobody; names it, and those that have.
    """
    _load()
    unknown = [kind for kind in schedule.columns.kinds if kind not in _found]
    if unknown:
        raise InvalidArgument(
            f"nothing executes actions of kind {unknown[0]!r}; see hocket.train.executes. There is something for "
            f"{', '.join(sorted(_found))}"
        )
