"""What kinds of actions there are: what each waits for, what it costs, and what it holds in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import hocket.pipeline.kinds as folder
from hocket.discovery import discover
from hocket.errors import InvalidArgument

Field = Literal["step", "pipe", "stage", "micro_batch", "peer"]
Crossing = Literal["activation", "gradient"]
Execute: TypeAlias = Callable[[Any, Any], None]
"""(step, action) -> None: see `hocket.train.executes`. It calls methods of the step, so needs no import of it."""
CROSSINGS: tuple[Crossing, ...] = ("activation", "gradient")
SAME: tuple[Field, ...] = ("step", "pipe", "stage", "micro_batch")

_found: dict[str, Kind] = {}


@dataclass(frozen=True)
class Need:
    """Actions that have to be over first: all of these kinds whose fields are those of the action that waits.

    Args:
        kinds: of them.
        stages: whether they are of the same stage, of those whose outputs are this stage's inputs, of those that take
            this stage's outputs, or of the stage at the other end of a message.
        match: the fields that have to be equal; for the stage, after `stages`.
        steps_before: they are of an earlier step.
        required: whether there has to be one.
        carries: what crosses between ranks, where they are of another one: the output of a forward pass, the gradient
            of one, a message that both ends name, or a sum over all copies of a stage.
    """

    kinds: tuple[str, ...]
    stages: Literal["same", "inputs", "outputs", "peer"] = "same"
    match: tuple[Field, ...] = SAME
    steps_before: int = 0
    required: bool = True
    carries: Literal["activation", "gradient", "message", "sum"] | None = None


@dataclass(frozen=True)
class Stash:
    """Something that is kept for one micro-batch of a stage, from one action to another.

    Args:
        name: of it; what it takes stands in `CostModel.stash_nbytes`.
        only_with, unless: a kind that there has to be, or must not be, for the same micro-batch and stage.
    """

    name: str
    only_with: str | None = None
    unless: str | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of actions.

    Args:
        name: as in tables: capital letters, and underscores between them.
        description: one line.
        scope: whether such an action is for micro-batches of a stage, or for a stage, once a step.
        needs: what it waits for.
        cost: under which name `CostModel.seconds` has the time of one; None: it takes none.
        resource: "rank": the rank does nothing else meanwhile; any other name: the rank starts it and goes on, and
            actions of that resource follow one another.
        instead: names of costs whose sum its own is, where a cost model does not have it.
        message: whether it sends or receives.
        carries: what such a message is: the output of a forward pass, or the gradient of one. Where a table has
            receives of it, the actions that wait for it across ranks take nothing from elsewhere themselves.
        takes, frees: what it keeps, from its beginning on; and what it lets go, at its end.
        peer_offset: how far the stage at the other end of a message is along a chain.
        counts_as: the kind that it takes the place of: wherever others wait for that one, or a check asks for it, this
            one does as well. Another backward pass counts as "B".
        is_of_forward: whether it is executed also where there are no backward passes: for predictions.
        execute: how a training step executes it, where no function of `hocket.train.run.actions` does.
        color, terminal_color: in pictures; in a terminal, the number of a background colour.
    """

    name: str
    description: str
    scope: Literal["micro_batch", "stage"] = "micro_batch"
    needs: tuple[Need, ...] = ()
    cost: str | None = None
    resource: str = "rank"
    instead: tuple[str, ...] = ()
    message: Literal["send", "receive"] | None = None
    carries: Crossing | None = None
    takes: tuple[Stash, ...] = ()
    frees: tuple[Stash, ...] = ()
    peer_offset: int = 0
    counts_as: str | None = None
    is_of_forward: bool = False
    execute: Execute | None = None
    color: str = "#b8bec6"
    terminal_color: int = 45

    @property
    def is_pass(self) -> bool:
        """Whether it is work on micro-batches that takes time."""
        return self.scope == "micro_batch" and self.cost is not None


def register_kind(kind: Kind) -> Kind:
    """Add a kind of actions, for tables that are made from then on.

    Raises:
        InvalidArgument: there is one of that name, or the name could not be read again.
    """
    if not re.fullmatch(r"[A-Z]+(_[A-Z]+)*", kind.name):
        raise InvalidArgument(f"the name of a kind is capital letters, with single _ between them, not {kind.name!r}")
    if _found.get(kind.name, kind) != kind:
        raise InvalidArgument(f"there is a kind {kind.name!r} of actions already")
    _found[kind.name] = kind
    return kind


@lru_cache
def _load() -> None:
    discover(folder, into=_found)


def kinds() -> Mapping[str, Kind]:
    """Return all kinds by their names."""
    _load()
    return MappingProxyType(_found)
