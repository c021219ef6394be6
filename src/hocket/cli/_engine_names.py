"""Gradient engines as a command line names them: a name, and options behind it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.train import EngineChoice
    from hocket.train.engines.engine import GradientEngine


def read_engine(text: str) -> EngineChoice:
    """Read an engine such as "fused" or "parameter-server num_servers=2 ports=45801,45802".

    Values are not checked: see `check_values`.

    Raises:
        InvalidArgument: an option has no value, or comes twice; or see `EngineChoice.check`.
    """
    from hocket.train import EngineChoice, gradient_engines

    if not text.strip():
        raise InvalidArgument("an engine needs a name, such as mix or ring")
    name, *parts = text.split()
    sequences = _sequences_of(gradient_engines().get(name))
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not value or key in options:
            raise InvalidArgument(f"options of an engine are NAME=VALUE, each once, not {part!r} in {text!r}")
        options[key] = [_value(each) for each in value.split(",")] if key in sequences else _value(value)
    choice = EngineChoice(name, options)
    choice.check(exact=False)
    return choice


def _sequences_of(engine: type[GradientEngine] | None) -> set[str]:
    """Return the options that are sequences, such as ports."""
    if engine is None:
        return set()
    return {
        name for name, each in inspect.signature(engine).parameters.items() if isinstance(each.default, (list, tuple))
    }


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
