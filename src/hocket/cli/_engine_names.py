"""Gradient engines as a command line names them: a name, and options behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.train import EngineChoice


def read_engine(text: str) -> EngineChoice:
    """Read an engine such as "fused" or "parameter-server num_servers=2 payload=shm".

    Raises:
        InvalidArgument: an option has no value, or comes twice; or see `EngineChoice.check`.
    """
    from hocket.train import EngineChoice

    if not text.strip():
        raise InvalidArgument("an engine needs a name, such as mix or ring")
    name, *parts = text.split()
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not value or key in options:
            raise InvalidArgument(f"options of an engine are NAME=VALUE, each once, not {part!r} in {text!r}")
        options[key] = _value(value)
    choice = EngineChoice(name, options)
    choice.check(exact=False)
    return choice


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
