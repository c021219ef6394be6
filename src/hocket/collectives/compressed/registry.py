"""Compressors by their names, and from texts such as "power-sgd(rank=2)"."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from hocket.collectives.compressed.compressor import Compressor
from hocket.collectives.compressed.largest import Dgc, OkTopk
from hocket.collectives.compressed.power_sgd import PowerSgd
from hocket.collectives.compressed.quantizers import Cast, OneBit, Qsgd, Zfp
from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import did_you_mean, unknown

_COMPRESSORS: dict[str, type[Compressor]] = {
    "cast": Cast,
    "dgc": Dgc,
    "ok-topk": OkTopk,
    "one-bit": OneBit,
    "power-sgd": PowerSgd,
    "qsgd": Qsgd,
    "zfp": Zfp,
}
_MOST_CHARACTERS = 1000


def compressors() -> dict[str, type[Compressor]]:
    """Return all compressors by name.

    Examples:
        >>> print(*hk.collectives.compressors())
        cast dgc ok-topk one-bit power-sgd qsgd zfp
    """
    return dict(_COMPRESSORS)


def compressor(given: Any) -> Compressor:
    """Return a compressor, which may be given by a text.

    Args:
        given: a compressor; or its name, with arguments in parentheses if need be.

    Raises:
        InvalidArgument: there is no such compressor, it has no such argument, or one is out of range.
        InvalidType: it is something else.

    Examples:
        >>> hk.collectives.compressor("ok-topk(density=0.02, values=int8)")
        OkTopk(density=0.02, places='packed', values='int8', dense='auto')
    """
    if isinstance(given, Compressor):
        return given
    if not isinstance(given, str):
        what = f"the class {given.__name__}: call it" if isinstance(given, type) else type(given).__name__
        raise InvalidType(f'a compressor must be an object or a text, such as "power-sgd(rank=2)", not {what}')
    name, parenthesis, rest = given.strip().partition("(")
    name = name.strip()
    if name not in _COMPRESSORS:
        raise InvalidArgument(unknown("compressor", name[:100], _COMPRESSORS))
    kind = _COMPRESSORS[name]
    parameters = [each for each in inspect.signature(kind).parameters if each != "draw"]
    positional, named = _arguments(given, parenthesis + rest)
    for each in named:
        if each not in parameters:
            raise InvalidArgument(
                f"{name} has no argument {each!r}; it has {', '.join(parameters)}{did_you_mean(each, parameters)}"
            )
    if len(positional) > len(parameters) or set(parameters[: len(positional)]) & set(named):
        raise InvalidArgument(f"{given!r} has too many arguments: {name} has {', '.join(parameters)}")
    return kind(*positional, **named)


def _arguments(given: str, text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments in parentheses: numbers, texts, words as texts. The text is parsed, never evaluated."""
    if not text:
        return [], {}
    wrong = InvalidArgument(
        f"{given[:100]!r} cannot be read: give a name, and in parentheses arguments that are numbers or words, such as "
        '"power-sgd(rank=2)" or "ok-topk(density=0.01, values=int8)"'
    )
    if len(given) > _MOST_CHARACTERS:
        raise wrong
    try:
        call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise wrong
        names = [each.arg for each in call.keywords]
        if None in names or len({*names}) < len(names):
            raise wrong
        return [_value(each) for each in call.args], {str(each.arg): _value(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise wrong from None


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value  # type: ignore[operator]
    raise ValueError("neither a number nor a text")
