"""JSON files with a format and a version, such as ``"format": "hocket schedule, version 1"``."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Head:
    """The format and version of one kind of file.

    Args:
        name: text before the version number; "": the number alone.
        version: the version that is written.
        error: exception class for files of another format.
        older: other versions that can be read.
        key: key of the text in the JSON object.
        title: description of such a file, for messages; by default the text with an article.
        most_nbytes: longer files are refused; None: no limit.
    """

    name: str
    version: int
    error: type[Exception]
    older: tuple[int, ...] = ()
    key: str = "format"
    title: str = ""
    most_nbytes: int | None = None

    @property
    def text(self) -> str:
        """The text that is written: name and version."""
        return f"{self.name}{self.version}"

    def names(self, found: object) -> bool:
        """Return whether the text of a head has this name, with any version."""
        return self._version_of(found) is not None

    def load(self, path: str | Path) -> tuple[int, dict[str, Any]]:
        """Read a file; see `parse`."""
        return self.parse(read_text(path, self.error, most_nbytes=self.most_nbytes), str(path))

    def parse(self, text: str, place: str) -> tuple[int, dict[str, Any]]:
        """Return the version of a JSON object, and the object without its version.

        Args:
            text: JSON.
            place: origin of the text, for messages.

        Raises:
            error: the text is not a JSON object of this format; names the place, what was found and what is expected.
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise self.error(f"{place}, line {error.lineno}: it is not JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or deep nesting
            raise self.error(f"{place}: {error}") from None
        place = f"{place}, line 1"
        if not isinstance(content, dict):
            raise self._refusal(place, f"it is {_KINDS[type(content)]}, not an object")
        if self.key not in content:
            raise self._refusal(place, f'it has no "{self.key}"')
        return self.check(content.pop(self.key), place), content

    def check(self, found: object, place: str) -> int:
        """Return the version in the text of a head; see `parse`."""
        version = self._version_of(found)
        if version in (self.version, *self.older):
            return version
        if version is None:
            raise self._refusal(place, f"it says {str(found)[:80]!r}")
        readable = " and ".join(str(each) for each in sorted((self.version, *self.older)))
        raise self._refusal(place, f"it has version {version}; this hocket reads version {readable}")

    def _version_of(self, found: object) -> int | None:
        if not self.name:
            return found if type(found) is int else None
        number = found.removeprefix(self.name) if isinstance(found, str) and found.startswith(self.name) else ""
        is_number = number.isascii() and number.isdecimal() and len(number) < 10 and number == str(int(number))
        return int(number) if is_number else None

    def _refusal(self, place: str, found: str) -> Exception:
        return self.error(f"{place}: not {self.title or f'a {self.text}'}: {found}")


def read_text(path: str | Path, error: type[Exception], *, most_nbytes: int | None = None) -> str:
    """Return the text of a file.

    Args:
        path: the file.
        error: exception class if the file cannot be read, is not text, or is too long.
        most_nbytes: largest size of the file; None: no limit.
    """
    most = -1 if most_nbytes is None else most_nbytes + 1
    try:
        with Path(path).open("rb") as file:
            content = file.read(most)
        if most_nbytes is not None and len(content) > most_nbytes:
            raise error(f"{path}: longer than {most_nbytes} bytes")
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()  # accepts all line endings
    except OSError as failure:
        raise error(f"{path}: {failure.strerror or failure}") from None
    except UnicodeDecodeError:
        raise error(f"{path}: not a text file") from None


_KINDS = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
