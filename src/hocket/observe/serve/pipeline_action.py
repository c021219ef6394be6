"""An action of a pipeline as the page draws it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineAction:
    """An action as in tables, such as "2F0"; times are seconds since the step began.

    It is one of `num_together` actions that the rank does at once, as forward passes beside backward passes; `place` is
    its place among them.
    """

    rank: int
    kind: str
    action: str
    began_s: float
    ended_s: float
    place: int = 0
    num_together: int = 1
