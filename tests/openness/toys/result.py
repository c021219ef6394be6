"""A kind of results: a file with a number, which is shown twice as large."""

from dataclasses import dataclass

from hocket.errors import InvalidArgument
from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource
from hocket.versioned_json import Head

HEAD = Head("toy, version ", 1, InvalidArgument)


@dataclass(frozen=True)
class ToyAnswer:
    doubled: int


def load(file: ResultFile) -> int:
    _, content = HEAD.parse(file.text, str(file.path))
    return int(content["number"])


def make(source: ResultSource) -> ToyAnswer:
    return ToyAnswer(2 * source.value)


RESULT = ResultKind("toy", "a toy", "hocket toy", HEAD, ToyAnswer, load, make)
