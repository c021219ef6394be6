"""The kinds of actions: their dependencies, costs and memory use."""

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
"""(step, action) -> None, see `hocket.train.executes`. It only calls methods of the step, so it imports nothing."""
CROSSINGS: tuple[Crossing, ...] = ("activation", "gradient")
SAME: tuple[Field, ...] = ("step", "pipe", "stage", "micro_batch")

_registered: dict[str, Kind] = {}


@dataclass(frozen=True)
class Need:
    """A dependency of a kind of actions: all actions of these kinds with equal fields must end first.

    Args:
        kinds: names of the kinds.
        stages: stages of these actions: the same stage, the stages that produce its inputs, the stages that consume
            its outputs, or the stage at the other end of a message.
        match: fields that must be equal; "stage" compares with the stages chosen by `stages`.
        steps_before: number of training steps between these actions and the dependent one.
        required: whether such an action must exist.
        carries: data transferred if these actions are on another rank: the output of a forward pass, its gradient,
            a message named by both ends, or a sum over all copies of a stage.

    Examples:
        >>> need = hk.pipeline.Need(("F",), stages="inputs", carries="activation")  # as a forward pass has
        >>> need.match
        ('step', 'pipe', 'stage', 'micro_batch')
    """

    kinds: tuple[str, ...]
    stages: Literal["same", "inputs", "outputs", "peer"] = "same"
    match: tuple[Field, ...] = SAME
    steps_before: int = 0
    required: bool = True
    carries: Literal["activation", "gradient", "message", "sum"] | None = None


@dataclass(frozen=True)
class Stash:
    """Memory that is kept for one micro-batch of a stage, from one action to another.

    Args:
        name: name of the stash; `CostModel.stash_nbytes` has its size.
        only_with: kind that must exist for the same micro-batch and stage.
        unless: kind that must not exist for the same micro-batch and stage.

    Examples:
        >>> forward = hk.pipeline.Stash("activation", unless="R")  # kept unless it is recomputed
        >>> hk.pipeline.CostModel().stash_nbytes[forward.name]
        1.0
    """

    name: str
    only_with: str | None = None
    unless: str | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of actions.

    Args:
        name: name in tables: capital letters, with single underscores between them.
        description: one line.
        scope: whether an action is for micro-batches of a stage, or for a stage, once per step.
        needs: dependencies of an action.
        cost: name of its time in `CostModel.seconds`; None: it takes no time.
        resource: "rank": the action occupies its rank. Any other name: the rank starts the action and continues, and
            actions of the same resource run in sequence.
        instead: names of costs whose sum is the default of its own cost.
        message: whether the action sends or receives a message.
        carries: content of the message: the output of a forward pass, or its gradient. In a table with such receives,
            dependent actions on other ranks get this data only through them.
        takes: stashes allocated at the start of the action.
        frees: stashes freed at the end of the action.
        peer_offset: distance along a chain to the stage at the other end of the message.
        counts_as: kind that this one can replace in dependencies and checks. Another backward pass counts as "B".
        is_of_forward: whether the action also runs without backward passes, for predictions.
        execute: function that executes the action in a training step, unless `hocket.train.run.actions` has one.
        color: colour in pictures.
        terminal_color: ANSI number of the background colour in a terminal.

    Examples:
        >>> kind = hk.pipeline.Kind("EVAL", "evaluate a micro-batch", needs=(hk.pipeline.Need(("F",)),), cost="EVAL")
        >>> kind.is_pass
        True
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
        """Whether the action is computation on micro-batches that takes time."""
        return self.scope == "micro_batch" and self.cost is not None


def register_kind(kind: Kind) -> Kind:
    """Register a kind of actions and return it.

    Raises:
        InvalidArgument: another kind has this name, or the name is not valid in tables.

    Examples:
        >>> register, Kind, Need = hk.pipeline.register_kind, hk.pipeline.Kind, hk.pipeline.Need
        >>> _ = register(Kind("NORM", "norm of the gradients", scope="stage", needs=(Need(("F",), match=("stage",)),)))
        >>> schedule = hk.pipeline.build("gpipe", 1, 2)
        >>> schedule.with_actions([[*schedule.actions[0], hk.pipeline.Action("NORM", 0)]]).actions[0][-1]
        Action(kind='NORM', stage=0, ...)
    """
    if not re.fullmatch(r"[A-Z]+(_[A-Z]+)*", kind.name):
        raise InvalidArgument(
            f"the name of a kind must be capital letters with single underscores between them, got {kind.name!r}"
        )
    if _registered.get(kind.name, kind) != kind:
        raise InvalidArgument(f"another kind of actions is already registered as {kind.name!r}")
    _registered[kind.name] = kind
    return kind


@lru_cache
def _load() -> None:
    discover(folder, into=_registered)


def kinds() -> Mapping[str, Kind]:
    """Return all registered kinds by name."""
    _load()
    return MappingProxyType(_registered)
