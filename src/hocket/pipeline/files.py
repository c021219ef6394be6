"""Schedules in files, whose ending says in which form."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

import hocket.pipeline.formats as folder
from hocket.discovery import by_name, discover
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
    return by_name("form of tables", [(each.ENDING, cast(Form, each)) for each in discover(folder)])


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
