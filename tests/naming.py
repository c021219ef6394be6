"""Checks of messages by the values that they name, independent of their sentences.

A message must name what was wrong and what would be right: arguments, options, files, numbers, ranks, backends. Tests
check these, and class, fields and exit code, so that sentences can be improved without a change of tests.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PROSE = re.compile(r"(?<![\w'\"-])[a-z]+(?:[,;:]? [a-z]+)+(?![\w'\"-])")
"""Words of a sentence: two or more in lower case that follow each other. "rank 1" and "no_such_file" are none."""
COMMAND = re.compile(r"\b(?:pip install|hocket (?:bench|tune) [a-z]+|hocket [a-z]+)\b")
"""What is to be typed is a value, too."""


def is_prose(text: str) -> bool:
    """Return whether a text contains words of a sentence, besides commands."""
    return PROSE.search(COMMAND.sub("", text)) is not None


class Given(str):
    """A sentence from elsewhere: from the test itself, such as the reason of an abort, or from another library."""


NO_SUCH_FILE = Given(os.strerror(errno.ENOENT))
NO_SPACE_LEFT = Given(os.strerror(errno.ENOSPC))
IS_A_DIRECTORY = Given(os.strerror(errno.EISDIR))


def names_value(text: str, name: str) -> bool:
    """Return whether a text has a name as a whole: "rank 1" is in "rank 1 left", not in "rank 10"; "1" not in "1.5"."""
    before = r"(?<!\w)" if re.match(r"\w|-\d", name) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", name) else ""
    if re.match(r"\d", name):
        before += r"(?<!\d\.)(?<![^\w]-)(?<!\A-)"  # not part of a fraction, not a negative number
    if re.search(r"\d\Z", name):
        after += r"(?!\.\d)"
    return re.search(before + re.escape(name) + after, text) is not None


def assert_names(text: str, *names: str) -> None:
    """Assert that a text contains each of these values as a whole word.

    Args:
        text: message of an error, or stderr of a command.
        names: values, such as "num_ranks", "'sort'", "rank 1"; sentences are refused, but those that are `Given`.
    """
    for name in names:
        assert isinstance(name, Given) or not is_prose(name), f"{name!r} is a sentence"
        assert names_value(text, name), f"{name!r} is not named in {text!r}"


@contextmanager
def raises(
    expected: type[BaseException], *, names: str | tuple[str, ...] = (), **fields: object
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises` for an error of exactly this class that names these values, and has these fields.

    Args:
        expected: the class; a subclass of it is another error.
        names: values that the message must contain, as for `assert_names`; a single one needs no tuple.
        fields: attributes of the error and their values, such as ``ranks=(1,)``.
    """
    with pytest.raises(expected) as caught:
        yield caught
    assert type(caught.value) is expected, f"{type(caught.value).__name__} instead of {expected.__name__}"
    assert_names(str(caught.value), *((names,) if isinstance(names, str) else names))
    found = {name: getattr(caught.value, name) for name in fields}
    assert found == fields, f"{found} instead of {fields}"
