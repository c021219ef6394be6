"""The schedules there are, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any, TypeAlias

import hocket.pipeline.schedules as folder
from hocket.discovery import discover, takes
from hocket.errors import InvalidArgument, InvalidType
from hocket.pipeline.schedule import PipelineSchedule
from hocket.suggestions import unknown

Build: TypeAlias = Callable[..., PipelineSchedule]
Restriction: TypeAlias = Callable[..., str | None]

_MOST_PASSES = 1 << 24
_found: dict[str, Recipe] = {}


@dataclass(frozen=True)
class Recipe:
    """One way to run a pipeline.

    Args:
        name: of it.
        build: (num_ranks, num_micro_batches, **parameters) -> PipelineSchedule.
        bubble: the bubble ratio by the paper as text; D ranks, N micro-batches, F, B, W seconds.
        reference: where it comes from.
        restriction: (num_ranks, num_micro_batches, **parameters) -> why it cannot do so many, or None.
        choices: values of parameters that are worth trying, beside their defaults.
    """

    name: str
    build: Build
    bubble: str
    reference: str
    restriction: Restriction
    choices: Mapping[str, tuple[Any, ...]]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Names and defaults of what can be chosen besides ranks and micro-batches."""
        signature = inspect.signature(self.build)
        return {name: each.default for name, each in list(signature.parameters.items())[2:]}

    @property
    def description(self) -> str:
        """What it does, in a line."""
        return (self.build.__doc__ or "").strip().partition("\n")[0]

    def variants(self) -> list[dict[str, Any]]:
        """Return all combinations of parameters that are worth trying."""
        tried = {name: dict.fromkeys((self.parameters[name], *values)) for name, values in self.choices.items()}
        return [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]

    def refusal(self, num_ranks: int, num_micro_batches: int, **parameters: Any) -> str | None:
        """Return why it cannot do so many ranks and micro-batches, or None."""
        return self.restriction(num_ranks, num_micro_batches, **{**self.parameters, **parameters})

    def schedule(self, num_ranks: int, num_micro_batches: int, **parameters: Any) -> PipelineSchedule:
        """Build the schedule.

        Raises:
            InvalidArgument: it cannot do so many ranks or micro-batches, or has no such parameter.
            InvalidType: what it builds is no PipelineSchedule.
        """
        for name, value in (("ranks", num_ranks), ("micro-batches", num_micro_batches)):
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"the number of {name} is 1 or more, not {value!r}")
        if num_ranks * num_micro_batches > _MOST_PASSES:
            raise InvalidArgument(
                f"{num_micro_batches} micro-batches on {num_ranks} ranks are too many: up to {_MOST_PASSES} passes work"
            )
        self._check(parameters)
        refusal = self.refusal(num_ranks, num_micro_batches, **parameters)
        if refusal:
            raise InvalidArgument(
                f"{self.name} cannot do {num_micro_batches} micro-batches on {num_ranks} ranks: {refusal}"
            )
        schedule = self.build(num_ranks, num_micro_batches, **parameters)
        if not isinstance(schedule, PipelineSchedule):
            raise InvalidType(f"{self.name} must build a PipelineSchedule, not {schedule!r}")
        return replace(schedule, name=self.name, parameters={**self.parameters, **parameters})

    def _check(self, parameters: Mapping[str, Any]) -> None:
        known = self.parameters
        for name, value in parameters.items():
            if name not in known:
                raise InvalidArgument(
                    f"{self.name} has no parameter {name!r}" + (f"; it has {', '.join(known)}" if known else "")
                )
            if isinstance(known[name], str):
                if not isinstance(value, str):
                    raise InvalidArgument(f"{name} of {self.name} is a word such as {known[name]!r}, not {value!r}")
            elif value != known[name] and not (type(value) is int and value >= 1):
                raise InvalidArgument(f"{name} of {self.name} is a number of 1 or more, not {value!r}")


def recipe(
    name: str,
    *,
    bubble: str,
    reference: str,
    restriction: Restriction = lambda num_ranks, num_micro_batches, **_: None,
    choices: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
) -> Callable[[Build], Build]:
    """Register the decorated function as `Recipe.build`; see there for the arguments."""

    if not isinstance(name, str):
        raise InvalidType(f"the name of a schedule must be a str, not {name!r}")

    def register(build: Build) -> Build:
        if not takes(build, "num_ranks", "num_micro_batches"):
            raise InvalidType(f"{name!r} must be a function of num_ranks and num_micro_batches, not {build!r}")
        if name in _found:
            raise InvalidArgument(f"there is a schedule {name!r} already, in {_found[name].build.__module__}")
        _found[name] = Recipe(name, build, bubble, reference, restriction, choices)
        return build

    return register


@lru_cache
def _load() -> None:
    discover(folder, into=_found)


def recipes() -> list[Recipe]:
    """Return all schedules there are, by name."""
    _load()
    return sorted(_found.values(), key=lambda each: each.name)


def find_recipe(name: str) -> Recipe:
    """Return one of them.

    Raises:
        InvalidArgument: there is none of that name; lists those there are.
    """
    _load()
    try:
        return _found[name]
    except KeyError:
        names = [each.name for each in recipes()]
        raise InvalidArgument(unknown("schedule", name, names)) from None


def build(name: str, num_ranks: int, num_micro_batches: int, **parameters: Any) -> PipelineSchedule:
    """Build a schedule by its name.

    Args:
        name: such as "1f1b"; see `recipes`.
        num_ranks: D.
        num_micro_batches: N of a step, over all pipes.
        parameters: of the schedule, such as num_pairs=2.

    Raises:
        InvalidArgument: there is no such schedule, or it cannot do so many ranks or micro-batches.
    """
    return find_recipe(name).schedule(num_ranks, num_micro_batches, **parameters)
