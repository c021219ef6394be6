"""Schedules in files, whose ending says in which form."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

import hocket.pipeline.formats as folder
from hocket.discovery import by_name, declared, declared_by, takes
from hocket.errors import InvalidArgument, InvalidSchedule
from hocket.pipeline.schedule import PipelineSchedule
from hocket.versioned_json import read_text


class Form(Protocol):
    """What a file of `hocket.pipeline.formats` has."""

    ENDING: str

    def dump(self, schedule: PipelineSchedule) -> str: ...

    def load(self, text: str, place: str = ...) -> PipelineSchedule: ...


@lru_cache
def forms() -> dict[str, Form]:
    """Return all forms by the endings of their files."""
    found = declared(folder, "ENDING", "the ending of its files, such as '.txt'", _is_ending)
    for module, _ in found:
        declared_by(module, "dump", "a function of a schedule", lambda it: takes(it, "schedule"))
        declared_by(module, "load", "a function of the text and the file's name", lambda it: takes(it, "text", "place"))
    return by_name("form of tables", [(ending, module, cast(Form, module)) for module, ending in found])


def _is_ending(value: object) -> bool:
    return isinstance(value, str) and value.startswith(".")


def load_schedule(path: str | Path) -> PipelineSchedule:
    """Read a schedule: .txt or .json as hocket writes them, .csv as torch.distributed.pipelining does.

    Raises:
        InvalidArgument: the ending says no form.
        InvalidSchedule: it cannot be read, or is none.
    """
    form = _form(path)
    return form.load(read_text(path, InvalidSchedule), str(path))


def save_schedule(schedule: PipelineSchedule, path: str | Path) -> None:
    """Write a schedule, in the form that the ending says.

    Raises:
        InvalidArgument: the ending says no form, the form cannot say the schedule, or the file cannot be written.
    """
    text = _form(path).dump(schedule)
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


def _form(path: str | Path) -> Form:
    ending = Path(path).suffix
    if ending not in forms():
        raise InvalidArgument(f"{path} must end in {', '.join(sorted(forms()))}")
    return forms()[ending]
