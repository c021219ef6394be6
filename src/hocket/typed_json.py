"""Records from JSON of another process: every value has the type that the record's field has, or it is refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_IN_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", tuple: "a list", dict: "an object"
}  # fmt: skip


def record_from(kind: type[_T], content: object) -> _T:
    """Make a dataclass from an object of JSON.

    Args:
        kind: dataclass whose fields are texts, numbers, truth values, None, records, tuples of one type, or
            dictionaries of texts.
        content: what `json.loads` returned.

    Raises:
        TypeError: a value has another type; names the field.
        KeyError: a field is missing.
    """
    return _record(kind, content, "")


def _record(kind: type[_T], content: object, of_kind: str) -> _T:
    """Make a dataclass; `of_kind` tells apart the fields of a record in another one."""
    if not isinstance(content, dict):
        raise TypeError(f"{kind.__name__} must be an object, not {content!r:.80}")
    hints = _hints_of(cast(Any, kind))
    return kind(**{name: _value(hint, content[name], f'"{name}"{of_kind}') for name, hint in hints})


@lru_cache(64)
def _hints_of(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((each.name, hints[each.name]) for each in fields(kind))


def _value(hint: Any, value: object, what: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in get_args(hint):
            return None
        (rest,) = (each for each in get_args(hint) if each is not NoneType)
        return _value(rest, value, what)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], each, what) for each in value)
    if origin is dict and isinstance(value, dict):
        return {str(name): _value(get_args(hint)[1], each, what) for name, each in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value, f" of {hint.__name__}")
    if hint is float and type(value) in (int, float):
        with suppress(OverflowError):  # an integer of hundreds of digits
            if isfinite(number := float(value)):  # type: ignore[arg-type]
                return number
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise TypeError(f"{what} must be {_IN_WORDS.get(origin or hint, hint)}, not {value!r:.80}")
