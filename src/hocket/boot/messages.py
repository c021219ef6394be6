"""The messages of a job's control connections: each is a JSON object with one key, its kind.

`FROM_RANK` and `TO_RANK` define the content of each kind; a message that does not match is refused before any of it is
used. Ranks in `members` are ranks of the job; all others are ranks of the communicator that `key` names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hocket.boot.sealed import ProtocolError

_Check = Callable[[object, int], bool]
"""Return whether a value is valid in a job with the given number of ranks."""

MOST_TEXT = 1 << 16
"""Most characters of a text in a message; exchanged texts may be as long as a message."""
MOST_HISTORIES = 1024


def _is_number(value: object, size: int) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_rank(value: object, size: int) -> bool:
    return type(value) is int and 0 <= value < size


def _is_count(value: object, size: int) -> bool:
    return type(value) is int and 1 <= value < 1 << 31


def _is_code(value: object, size: int) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_text(value: object, size: int) -> bool:
    return _is_any_text(value, size) and len(str(value)) <= MOST_TEXT


def _is_any_text(value: object, size: int) -> bool:
    if type(value) is not str:
        return False
    try:
        value.encode()  # JSON may contain lone surrogates, our texts do not
    except UnicodeEncodeError:
        return False
    return True


def _is_nothing(value: object, size: int) -> bool:
    return value is None


def _are_ranks(value: object, size: int) -> bool:
    return (
        type(value) is list
        and len(value) <= size
        and all(_is_rank(each, size) for each in value)
        and len(set(value)) == len(value)
    )


def _are_texts(value: object, size: int) -> bool:
    return type(value) is list and len(value) == size and all(_is_any_text(each, size) for each in value)


def _are_some_texts(value: object, size: int) -> bool:
    return type(value) is list and len(value) <= size and all(_is_any_text(each, size) for each in value)


def _are_numbers(value: object, size: int) -> bool:
    return type(value) is list and len(value) <= MOST_HISTORIES and all(_is_number(each, size) for each in value)


def _fields(**checks: _Check) -> _Check:
    def is_object(value: object, size: int) -> bool:
        return (
            type(value) is dict
            and value.keys() == checks.keys()
            and all(check(value[name], size) for name, check in checks.items())
        )

    return is_object


def _one_per_rank(check: _Check) -> _Check:
    def are(value: object, size: int) -> bool:
        return type(value) is list and len(value) == size and all(check(each, size) for each in value)

    return are


_NOTICE: dict[str, _Check] = {
    "key": _is_number,
    "seq": _is_number,
    "history": _is_number,
    "members": _are_ranks,
}
_FACTS: dict[str, _Check] = {
    "size": _is_count,
    "version": _is_text,
    "local_rank": _is_code,
    "local_size": _is_count,
    "host": _is_text,
    "place": _is_text,
}

FROM_RANK: Mapping[str, _Check] = {
    "hello": _fields(**_FACTS),
    "exchange": _is_any_text,
    "gather": _fields(key=_is_number, members=_are_ranks, text=_is_any_text),
    "aborted": _fields(**_NOTICE, code=_is_code, text=_is_text, ranks=_are_ranks),
    "left": _fields(**_NOTICE),
    "stalled": _fields(**_NOTICE),
    "issued": _fields(**_NOTICE),
    "report": _fields(
        key=_is_number, seq=_is_number, last=_is_number, fingerprint=_is_number, text=_is_text, traits=_is_text
    ),
    "traced": _fields(key=_is_number, seq=_is_number, histories=_are_numbers),
    "failed": _is_text,
    "bye": _is_nothing,
}
TO_RANK: Mapping[str, _Check] = {
    "refused": _is_any_text,
    "awaited": _are_ranks,
    "missing": _are_ranks,
    "welcome": _fields(nonce=_is_text, members=_one_per_rank(_fields(**_FACTS, address=_is_text))),
    "exchange": _are_texts,
    "gathered": _fields(key=_is_number, texts=_are_some_texts),
    "gone": _is_rank,
    "failed": _fields(rank=_is_rank, text=_is_text),
    "aborted": _fields(key=_is_number, code=_is_code, text=_is_text, ranks=_are_ranks),
    "left": _fields(key=_is_number, seq=_is_number, history=_is_number, rank=_is_rank),
    "tell": _fields(key=_is_number, seq=_is_number),
    "trace": _fields(key=_is_number, seq=_is_number),
    "verdict": _fields(
        key=_is_number, seq=_is_number, behind=_are_ranks, mismatch=_is_any_text, wanted=_are_some_texts
    ),
}


def encode(kind: str, content: object) -> bytes:
    """Return the bytes of a message."""
    return json.dumps({kind: content}).encode()


def decode(message: bytes, kinds: Mapping[str, _Check], size: int) -> tuple[str, Any]:
    """Return the kind and the content of a message.

    Args:
        message: its bytes; the reader of the connection limits their number.
        kinds: `FROM_RANK` or `TO_RANK`.
        size: number of ranks of the job.

    Raises:
        ProtocolError: the message is invalid.
    """
    try:
        parsed = json.loads(message)
    except (ValueError, RecursionError) as error:  # ValueError also for a number of thousands of digits
        raise ProtocolError(f"a message is not JSON: {type(error).__name__}") from None
    if type(parsed) is not dict or len(parsed) != 1:
        raise ProtocolError("a message must be a JSON object with one key")
    [(kind, content)] = parsed.items()
    check = kinds.get(kind)
    if check is None:
        raise ProtocolError(f"unknown message {kind[:40]!r}")
    if not check(content, size):
        raise ProtocolError(f"message {kind!r} has an invalid content")
    return kind, content
