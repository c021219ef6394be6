"""Files of other tools: read within bounds, and every value has the type that it should have."""

from __future__ import annotations

import gzip
import json
import reprlib
import zlib
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from hocket.errors import RecorderError

MOST_NBYTES = 1 << 30
"""Of a file, after it was decompressed."""
_MOST_LINE_NBYTES = 1 << 22
_PIECE_NBYTES = 1 << 20
_MOST_INTEGER = 1 << 62
_GZIP = b"\x1f\x8b"
_REQUIRED = object()


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, decompressed if it is of gzip.

    Raises:
        RecorderError: it cannot be read, is damaged, or has more than `MOST_NBYTES`.
    """
    total = 0
    try:
        with path.open("rb") as raw:
            is_compressed = raw.read(2) == _GZIP
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if is_compressed else raw as file:
                while piece := file.read(_PIECE_NBYTES):
                    total += len(piece)
                    if total > MOST_NBYTES:
                        raise RecorderError(f"{path}: it has more than {MOST_NBYTES} bytes: import parts of it")
                    yield piece
    except OSError as error:
        raise RecorderError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise RecorderError(f"{path}: its compressed data is damaged: {error}") from None


def lines_of(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the lines of a file with their numbers, and whether they have an end; without empty ones.

    Raises:
        RecorderError: as of `pieces_of`, or a line is too long.
    """
    number, rest = 1, b""
    for piece in pieces_of(path):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield number, line, True
            number += 1
        if len(rest) > _MOST_LINE_NBYTES:
            raise RecorderError(f"{path}, line {number}: it is longer than {_MOST_LINE_NBYTES} bytes")
    if rest.strip():
        yield number, rest, False


def parse_json(text: bytes, place: str) -> Any:
    """Return what a JSON text says.

    Raises:
        RecorderError: it is not JSON; names the place.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise RecorderError(f"{place}: it is not JSON: {error.msg} (character {error.pos})") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, a number of thousands of digits, deep nesting
        raise RecorderError(f"{place}: {error}") from None


class ReadObject:
    """An object of another tool, whose values are checked when they are read.

    Args:
        content: what a parser returned.
        place: of it, for messages.

    Raises:
        RecorderError: it is not an object.
    """

    def __init__(self, content: object, place: str) -> None:
        if not isinstance(content, dict):
            raise RecorderError(f"{place}: it should be an object, not {_shown(content)}")
        self.content: dict[Any, Any] = content
        self.place = place

    def __contains__(self, key: str) -> bool:
        return key in self.content

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        """Return an integer; the default if it is missing or null."""
        value = self._value(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if type(value) is not int or abs(value) >= _MOST_INTEGER:
            raise self._refusal(key, "an integer of less than 2**62", value)
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        """Return a finite number."""
        value = self._value(key, default)
        if value is default:
            return value  # type: ignore[no-any-return]
        if type(value) not in (int, float) or abs(value) >= _MOST_INTEGER or not isfinite(value):
            raise self._refusal(key, "a finite number of less than 2**62", value)
        return value  # type: ignore[no-any-return]

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        """Return a text."""
        value = self._value(key, default)
        if value is not default and not isinstance(value, str):
            raise self._refusal(key, "a text", value)
        if value is not default and not _is_unicode(value):
            raise self._refusal(key, "a text of Unicode", value)
        return value  # type: ignore[no-any-return]

    def boolean(self, key: str, default: Any = _REQUIRED) -> bool:
        """Return a truth value."""
        value = self._value(key, default)
        if value is not default and not isinstance(value, bool):
            raise self._refusal(key, "true or false", value)
        return value  # type: ignore[no-any-return]

    def sequence(self, key: str, default: Any = _REQUIRED) -> list[Any]:
        """Return a list."""
        value = self._value(key, default)
        if value is not default and not isinstance(value, (list, tuple)):
            raise self._refusal(key, "a list", value)
        return value  # type: ignore[no-any-return]

    def child(self, key: str) -> ReadObject:
        """Return an object in this one; an empty one if it is missing."""
        return ReadObject(self.content.get(key) or {}, f'{self.place}, "{key}"')

    def children(self, key: str) -> Iterator[ReadObject]:
        """Yield the objects of a list."""
        for number, each in enumerate(self.sequence(key, ())):
            yield ReadObject(each, f'{self.place}, "{key}" {number}')

    def _value(self, key: str, default: Any) -> Any:
        value = self.content.get(key)
        if value is None:
            if default is _REQUIRED:
                raise RecorderError(f'{self.place}: it has no "{key}"')
            return default
        return value

    def _refusal(self, key: str, wanted: str, value: object) -> RecorderError:
        return RecorderError(f'{self.place}: "{key}" should be {wanted}, not {_shown(value)}')


def _is_unicode(text: str) -> bool:
    """JSON may have halves of characters."""
    return text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)


def _shown(value: object) -> str:
    """Part of a value: whole ones may be as long as an attacker likes."""
    try:
        return reprlib.repr(value)[:60]
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"a value of type {type(value).__name__}"
