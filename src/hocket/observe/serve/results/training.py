"""Trainings of `hocket train`: what was reported after each epoch."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.observe.serve.result import ResultFile, ResultKind, ResultSource
from hocket.observe.training_file import HEAD, TrainingFile


@dataclass(frozen=True)
class TrainingCurve:
    """A value after each epoch; null: it was not finite."""

    name: str
    values: list[float | None]


@dataclass(frozen=True)
class TrainingAnswer:
    """The answer; "left_to_keras" has the operations that Keras itself ran, with the reasons."""

    plan: str
    epochs: list[int]
    curves: list[TrainingCurve]
    left_to_keras: dict[str, str]


def _load(file: ResultFile) -> TrainingFile:
    return TrainingFile.from_json(file.text, str(file.path))


def _make(source: ResultSource) -> TrainingAnswer:
    given: TrainingFile = source.value
    curves = [TrainingCurve(name, list(values)) for name, values in given.curves.items()]
    return TrainingAnswer(given.plan, list(given.epochs), curves, dict(given.left_to_keras))


RESULT = ResultKind("training", "a training", "hocket train --json", HEAD, TrainingAnswer, _load, _make)
