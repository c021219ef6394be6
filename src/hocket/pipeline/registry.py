"""The registry of pipeline schedules, by name."""

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
_recipes: dict[str, Recipe] = {}


@dataclass(frozen=True)
class Recipe:
    """A registered pipeline schedule: how to build it, and where it is from.

    Args:
        name: name of the schedule.
        build: (num_ranks, num_micro_batches, **parameters) -> PipelineSchedule.
        bubble: bubble ratio in the paper, as text; D ranks, N micro-batches, F, B, W seconds.
        reference: paper or project of the schedule.
        restriction: (num_ranks, num_micro_batches, **parameters) -> reason why these are not supported, or None.
        choices: values of parameters to try, in addition to their defaults.

    Examples:
        >>> recipe = hk.pipeline.find_recipe("gpipe")
        >>> recipe.bubble
        '(D - 1)/(N + D - 1)'
        >>> recipe.schedule(num_ranks=4, num_micro_batches=8)
        <gpipe: 4 ranks, 8 micro-batches>
    """

    name: str
    build: Build
    bubble: str
    reference: str
    restriction: Restriction
    choices: Mapping[str, tuple[Any, ...]]

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Names and defaults of the parameters besides ranks and micro-batches."""
        signature = inspect.signature(self.build)
        return {name: each.default for name, each in list(signature.parameters.items())[2:]}

    @property
    def description(self) -> str:
        """One line that describes the schedule."""
        return (self.build.__doc__ or "").strip().partition("\n")[0]

    def variants(self) -> list[dict[str, Any]]:
        """Return all combinations of default parameters and `choices`."""
        options = {name: dict.fromkeys((self.parameters[name], *values)) for name, values in self.choices.items()}
        return [dict(zip(options, values, strict=True)) for values in product(*options.values())]

    def refusal(self, num_ranks: int, num_micro_batches: int, **parameters: Any) -> str | None:
        """Return the reason why these numbers or parameters are not supported, or None."""
        return self.restriction(num_ranks, num_micro_batches, **{**self.parameters, **parameters})

    def schedule(self, num_ranks: int, num_micro_batches: int, **parameters: Any) -> PipelineSchedule:
        """Build the schedule.

        Raises:
            InvalidArgument: a number is not supported, or a parameter is unknown.
            InvalidType: the recipe does not build a PipelineSchedule.
        """
        for name, value in (("ranks", num_ranks), ("micro-batches", num_micro_batches)):
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"the number of {name} must be an integer of 1 or more, got {value!r}")
        if num_ranks * num_micro_batches > _MOST_PASSES:
            raise InvalidArgument(
                f"too many micro-batches ({num_micro_batches}) on {num_ranks} ranks: the limit is {_MOST_PASSES} passes"
            )
        self._check(parameters)
        refusal = self.refusal(num_ranks, num_micro_batches, **parameters)
        if refusal:
            raise InvalidArgument(
                f"{self.name} does not support {num_micro_batches} micro-batches on {num_ranks} ranks: {refusal}"
            )
        schedule = self.build(num_ranks, num_micro_batches, **parameters)
        if not isinstance(schedule, PipelineSchedule):
            raise InvalidType(f"{self.name} must build a PipelineSchedule, got {schedule!r}")
        return replace(schedule, name=self.name, parameters={**self.parameters, **parameters})

    def _check(self, parameters: Mapping[str, Any]) -> None:
        known = self.parameters
        for name, value in parameters.items():
            if name not in known:
                raise InvalidArgument(
                    f"{self.name} has no parameter {name!r}"
                    + (f"; its parameters: {', '.join(known)}" if known else "")
                )
            if isinstance(known[name], str):
                if not isinstance(value, str):
                    raise InvalidArgument(f"{name} of {self.name} must be a str such as {known[name]!r}, got {value!r}")
            elif value != known[name] and not (type(value) is int and value >= 1):
                raise InvalidArgument(f"{name} of {self.name} must be an integer of 1 or more, got {value!r}")


def recipe(
    name: str,
    *,
    bubble: str,
    reference: str,
    restriction: Restriction = lambda num_ranks, num_micro_batches, **_: None,
    choices: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
) -> Callable[[Build], Build]:
    """Register the decorated function as `Recipe.build`; the arguments are those of `Recipe`.

    Raises:
        InvalidType: `name` is not a str, or the function does not take num_ranks and num_micro_batches.
        InvalidArgument: another schedule has this name.

    Examples:
        >>> @hk.pipeline.recipe("one-by-one", bubble="(D - 1)/D", reference="this example")
        ... def one_by_one(num_ranks, num_micro_batches):
        ...     '''One micro-batch at a time.'''
        ...     rows = [
        ...         [hk.pipeline.Action(kind, rank, index) for index in range(num_micro_batches) for kind in "FB"]
        ...         for rank in range(num_ranks)
        ...     ]
        ...     return hk.pipeline.PipelineSchedule("", hk.pipeline.linear(num_ranks), num_micro_batches, rows)
        >>> print(*hk.pipeline.build("one-by-one", 2, 2).actions[0])
        0F0 0B0 0F1 0B1
    """

    if not isinstance(name, str):
        raise InvalidType(f"the name of a schedule must be a str, got {name!r}")

    def register(build: Build) -> Build:
        if not takes(build, "num_ranks", "num_micro_batches"):
            raise InvalidType(f"{name!r} must be a function of num_ranks and num_micro_batches, got {build!r}")
        if name in _recipes:
            raise InvalidArgument(f"a schedule {name!r} is already registered in {_recipes[name].build.__module__}")
        _recipes[name] = Recipe(name, build, bubble, reference, restriction, choices)
        return build

    return register


@lru_cache
def _load() -> None:
    discover(folder, into=_recipes)


def recipes() -> list[Recipe]:
    """Return all registered schedules, sorted by name.

    Examples:
        >>> [recipe.name for recipe in hk.pipeline.recipes()]
        ['1f1b', ..., 'zb-v']
    """
    _load()
    return sorted(_recipes.values(), key=lambda each: each.name)


def find_recipe(name: str) -> Recipe:
    """Return a registered schedule.

    Raises:
        InvalidArgument: the name is unknown; the error lists all names.

    Examples:
        >>> hk.pipeline.find_recipe("interleaved").parameters
        {'num_loops': 2}
    """
    _load()
    try:
        return _recipes[name]
    except KeyError:
        names = [each.name for each in recipes()]
        raise InvalidArgument(unknown("schedule", name, names)) from None


def build(name: str, num_ranks: int, num_micro_batches: int, **parameters: Any) -> PipelineSchedule:
    """Build a schedule by name.

    Args:
        name: name of the schedule, such as "1f1b"; see `recipes`.
        num_ranks: D.
        num_micro_batches: N, micro-batches per step over all pipes.
        parameters: parameters of the schedule, such as num_pairs=2.

    Returns:
        The schedule.

    Raises:
        InvalidArgument: the name is unknown, or these numbers or parameters are not supported.

    Examples:
        >>> schedule = hk.pipeline.build("1f1b", num_ranks=4, num_micro_batches=8)
        >>> print(*schedule.actions[3])
        3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7
        >>> f"{hk.pipeline.simulate(schedule).bubble():.1%}"  # 3/11
        '27.3%'
    """
    return find_recipe(name).schedule(num_ranks, num_micro_batches, **parameters)
