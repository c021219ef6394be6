"""The interface of a schedule that its columns and dependencies need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hocket.pipeline.action import Action


class ActionTable(Protocol):
    """The table of actions of a `PipelineSchedule`, and the ranges of its numbers."""

    @property
    def actions(self) -> Sequence[Sequence[Action]]: ...
    @property
    def edges(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def num_stages(self) -> int: ...
    @property
    def num_pipes(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_micro_batches(self) -> int: ...
