"""Files of results that are opened: which kind each of them is, and what the page shows of it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.discovery import by_name, declared
from hocket.errors import HocketError, InvalidArgument
from hocket.observe.serve import results
from hocket.observe.serve.requests import json_bytes
from hocket.observe.serve.result import LoadedResult, ResultFile, ResultKind, ResultSource
from hocket.observe.serve.unopened import advice_for, advice_for_ending
from hocket.versioned_json import read_text

MOST_FILES = 100
_MOST_NBYTES = 256 << 20
_MOST_HEAD = 200


@dataclass(frozen=True)
class ResultListed:
    """A file that was opened.

    Args:
        name: in the address.
        kind: name of its kind.
        title: what it is, in words.
        path: of the file.
        nbytes: of the file.
    """

    name: str
    kind: str
    title: str
    path: str
    nbytes: int


@dataclass(frozen=True)
class OpenedResults:
    """What the page shows of files.

    Args:
        listed: the files, in the order in which they were named.
        answers: JSON of the answer of each, by name.
    """

    listed: tuple[ResultListed, ...] = ()
    answers: Mapping[str, bytes] = field(default_factory=dict)


def result_kinds() -> dict[str, ResultKind]:
    """Return the kinds of results by name, in the order of their files."""
    wanted = "a hocket.observe.serve.result.ResultKind"
    found = declared(results, "RESULT", wanted, lambda value: isinstance(value, ResultKind))
    return by_name("kind of results", [(kind.name, module, kind) for module, kind in found])


def open_results(paths: Sequence[Path]) -> OpenedResults:
    """Read files, and compute what the page shows of them.

    Args:
        paths: files of any kinds. Files of one kind are compared, and a tuning table is applied to observations.

    Raises:
        InvalidArgument: a file cannot be read, or is of no kind that can be opened; names it, and what would be right.
        HocketError: a file is damaged, or of another version; of the class that its own tool raises.
    """
    if len(paths) > MOST_FILES:
        raise InvalidArgument(f"at most {MOST_FILES} files are opened at once, not {len(paths)}")
    kinds = list(result_kinds().values())
    seen: set[Path] = set()
    opened: list[LoadedResult] = []
    for path in paths:
        file = _read(path)
        if path.resolve() in seen:
            raise InvalidArgument(f"{path} is named twice")
        seen.add(path.resolve())
        kind = _kind_of(file, kinds)
        with _blaming(path):
            value = kind.load(file)
        opened.append(LoadedResult(_free_name(path, {each.name for each in opened}), kind, file, value))
    answers = {}
    for each in opened:
        with _blaming(each.file.path):
            answers[each.name] = json_bytes(each.kind.make(ResultSource(each, opened)))
    return OpenedResults(tuple(map(_listed, opened)), answers)


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Turn what values cause that no tool writes into an error that names the file."""
    try:
        yield
    except HocketError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{path} is damaged: {type(error).__name__}: {error}") from error


def _listed(result: LoadedResult) -> ResultListed:
    nbytes = len(result.file.text.encode())
    return ResultListed(result.name, result.kind.name, result.kind.title, str(result.file.path), nbytes)


def _free_name(path: Path, taken: set[str]) -> str:
    """Return the name of the file, with its folder if the name is taken; bytes that are not Unicode are dropped."""
    own, folder = (each.encode("utf-8", "replace").decode() for each in (path.name, path.resolve().parent.name))
    name = own
    if name in taken:
        name = f"{folder}-{own}"
    number = 2
    while name in taken:
        name = f"{own}-{number}"
        number += 1
    return name


def _read(path: Path) -> ResultFile:
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(found.st_mode):  # to read a pipe could take for ever
        raise InvalidArgument(f"{path} is no regular file: name a file that another command of hocket has written")
    if found.st_size > _MOST_NBYTES:
        raise InvalidArgument(f"{path} has {found.st_size} bytes; at most {_MOST_NBYTES} are read")
    try:
        text = read_text(path, InvalidArgument, most_nbytes=_MOST_NBYTES)
    except InvalidArgument as error:
        advice = advice_for_ending(path)
        raise InvalidArgument(f"{error}; {advice}" if advice else str(error)) from None
    if not text.strip():
        raise InvalidArgument(f"{path} is empty")
    return ResultFile(path, text, _object_in(text, path))


def _object_in(text: str, path: Path) -> dict[str, Any] | None:
    """The object of JSON that a text is; None: it is something else."""
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        return None
    except (ValueError, RecursionError) as error:  # NaN, a number of thousands of digits, or deep nesting
        raise InvalidArgument(f"{path} is damaged: {error}") from None
    return content if isinstance(content, dict) else None


def _refuse_constant(word: str) -> float:
    raise ValueError(f"JSON has no number {word}")


def _kind_of(file: ResultFile, kinds: Sequence[ResultKind]) -> ResultKind:
    """The kind whose head a file has, of any version: its kind names the versions if it is another one."""
    first_line = file.text.lstrip().partition("\n")[0][:_MOST_HEAD].rstrip()
    for kind in kinds:
        head = kind.head
        if head.names(file.content.get(head.key) if file.content is not None else head.name and first_line):
            return kind
    if found := advice_for(file, first_line):
        raise InvalidArgument(f"{file.path}: {found}")
    error = InvalidArgument(f"{file.path} cannot be opened: {_what_is_wrong(file)}")
    error.add_note("can be opened: " + "; ".join(f"{kind.title} ({kind.command})" for kind in kinds))
    raise error


def _what_is_wrong(file: ResultFile) -> str:
    """Why a file is of no kind, in a few words."""
    if file.content is None:
        return "it is neither an object of JSON nor a text that hocket writes"
    if "format" not in file.content:
        return 'it is JSON without "format"'
    return f"hocket does not know its format {file.content['format']!r:.80}"
