"""What a kind of results is: a file in `results/` that declares one as `RESULT`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.versioned_json import Head

_MOST_TEXT = 200


@dataclass(frozen=True)
class ResultFile:
    """A file as it was read.

    Args:
        path: of the file.
        text: all of it.
        content: its object of JSON; None: it is no JSON.
    """

    path: Path
    text: str
    content: Mapping[str, Any] | None


@dataclass(frozen=True)
class ResultKind:
    """A kind of results.

    Args:
        name: of the kind; the page draws it with the file of `ui/src/results/` that exports this name.
        title: what such a file is, in words.
        command: that writes such files.
        head: what such a file begins with.
        answer: dataclass of what `make` returns; the types of the page are made of it.
        load: reads a file and checks all of it.
        make: computes what the page shows of a file.
    """

    name: str
    title: str
    command: str
    head: Head
    answer: type
    load: Callable[[ResultFile], Any]
    make: Callable[[ResultSource], Any]


@dataclass(frozen=True)
class LoadedResult:
    """A file that a kind has loaded.

    Args:
        name: in the address; no other opened file has it.
        kind: that has loaded it.
        file: as it was read.
        value: what `ResultKind.load` has returned.
    """

    name: str
    kind: ResultKind
    file: ResultFile
    value: Any


class ResultSource:
    """What a kind asks about a file, and about those that were opened with it.

    Args:
        result: the file.
        opened: all files, in the order in which they were named.
    """

    def __init__(self, result: LoadedResult, opened: Sequence[LoadedResult]) -> None:
        self.result = result
        self._opened = opened

    @property
    def value(self) -> Any:
        """What the kind has loaded."""
        return self.result.value

    def others(self, kind: str) -> list[LoadedResult]:
        """Return the other files of a kind."""
        return [each for each in self._opened if each.kind.name == kind and each is not self.result]

    def earlier(self, kind: str) -> list[LoadedResult]:
        """Return the files of a kind that were named before this one."""
        before = self._opened[: self._opened.index(self.result)]
        return [each for each in before if each.kind.name == kind]


def shorten(text: str) -> str:
    """Return a name of a file, of which the page shows at most 200 characters."""
    return text[:_MOST_TEXT]


def shorten_all(parameters: Mapping[str, object]) -> dict[str, str]:
    """Return the parameters of a schedule as the page shows them."""
    return {shorten(str(name)): shorten(str(value)) for name, value in parameters.items()}
