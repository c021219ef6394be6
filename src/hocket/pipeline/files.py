"""Read and write schedules; the suffix of a file determines its format."""

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
    """The interface of a module in `hocket.pipeline.formats`."""

    ENDING: str

    def dump(self, schedule: PipelineSchedule) -> str: ...

    def load(self, text: str, place: str = ...) -> PipelineSchedule: ...


@lru_cache
def forms() -> dict[str, Form]:
    """Return all formats by their file suffixes."""
    declarations = declared(folder, "ENDING", "the suffix of its files, such as '.txt'", _is_ending)
    for module, _ in declarations:
        declared_by(module, "dump", "a function of a schedule", lambda it: takes(it, "schedule"))
        declared_by(module, "load", "a function of the text and the file's name", lambda it: takes(it, "text", "place"))
    return by_name("form of tables", [(ending, module, cast(Form, module)) for module, ending in declarations])


def _is_ending(value: object) -> bool:
    return isinstance(value, str) and value.startswith(".")


def load_schedule(path: str | Path) -> PipelineSchedule:
    """Read a schedule from a file: .txt or .json of hocket, or .csv of torch.distributed.pipelining.

    Raises:
        InvalidArgument: the suffix is unknown.
        InvalidSchedule: the file cannot be read, or is not a valid schedule.

    Examples:
        >>> hk.pipeline.save_schedule(hk.pipeline.build("zb-h1", 2, 4), "zb.csv")
        >>> hk.pipeline.load_schedule("zb.csv")
        <torch: 2 ranks, 4 micro-batches>
    """
    form = _form(path)
    return form.load(read_text(path, InvalidSchedule), str(path))


def save_schedule(schedule: PipelineSchedule, path: str | Path) -> None:
    """Write a schedule to a file; the suffix determines the format.

    Raises:
        InvalidArgument: the suffix is unknown, the format cannot express the schedule, or the file cannot be written.

    Examples:
        >>> from pathlib import Path
        >>> hk.pipeline.save_schedule(hk.pipeline.build("gpipe", 2, 2), "gpipe.txt")
        >>> print(Path("gpipe.txt").read_text())
        hocket pipeline schedule, version 1
        name: gpipe
        micro-batches: 2
        pipe 0: 0 1
        rank 0: 0F0 0F1 0B0 0B1
        rank 1: 1F0 1F1 1B0 1B1
    """
    text = _form(path).dump(schedule)
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise InvalidArgument(f"cannot write {path}: {error.strerror}") from None


def _form(path: str | Path) -> Form:
    ending = Path(path).suffix
    if ending not in forms():
        raise InvalidArgument(f"the suffix of {path} must be one of {', '.join(sorted(forms()))}")
    return forms()[ending]
