"""Cases of trainings of several ranks, and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hocket import pipeline
from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.pipeline import PipelineSchedule
from hocket.train import MicroBatch, PipelineExecutor, SplitModel

from .models import (
    LOSSES,
    data_of,
    gradients_of_one_process,
    gradients_of_stages_in_turn,
    same,
    split_of,
)

NUM_STEPS = 2  # the second step detects state that the first one has left


@dataclass(frozen=True)
class Case:
    """A model and a schedule.

    Args:
        model: name in `models.MODELS`.
        schedule, parameters: arguments of `hocket.pipeline.build`.
        num_micro_batches: micro-batches of a replica.
        dtype: type of parameters and data.
        exact: see `PipelineExecutor`.
        passes: names of passes over the table.
        exported: whether the model is traced by torch.export.
    """

    model: str
    schedule: str
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)
    num_micro_batches: int = 4
    dtype: torch.dtype = torch.float32
    exact: bool = True
    passes: tuple[str, ...] = ()
    exported: bool = False

    def __str__(self) -> str:
        words = [self.model, self.schedule, *(f"{name}={value}" for name, value in self.parameters.items())]
        words += [str(self.num_micro_batches), str(self.dtype).removeprefix("torch."), *self.passes]
        words += ["exported"] if self.exported else []
        return "-".join(words) + ("" if self.exact else "-any")

    def table(self, num_ranks: int, split: SplitModel | None = None) -> PipelineSchedule:
        """Return the schedule; with the edges of the model, if messages are lowered into it."""
        schedule = pipeline.build(self.schedule, num_ranks, self.num_micro_batches, **self.parameters)
        for name in self.passes:
            schedule = PASSES[name](schedule)
        return schedule


PASSES = {
    "recompute": pipeline.recompute,
    "fifo": lambda schedule: pipeline.lower_messages(schedule, "fifo"),
    "rendezvous": lambda schedule: pipeline.lower_messages(schedule, "rendezvous"),
    "lazy": lambda schedule: pipeline.add_gradient_sync(schedule, "lazy"),
    "eager": lambda schedule: pipeline.add_gradient_sync(schedule, "eager"),
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case on a rank.

    Args:
        wrong: names of parameters whose gradients differ from those of one process.
        num_parameters: number of parameters that were compared.
        error: the text of an error.
    """

    wrong: tuple[str, ...] = ()
    num_parameters: int = 0
    error: str = ""


def run_cases(comm: Communicator, num_ranks: int, cases: Sequence[Case]) -> list[Outcome]:
    """Train each of the cases, and compare; `num_ranks`: ranks of a pipeline."""
    torch.set_num_threads(1)
    found = []
    for case in cases:
        try:
            found.append(_run(comm, num_ranks, case))
        except HocketError as error:
            found.append(Outcome(error=f"{type(error).__name__}: {error}"))
    return found


def _run(comm: Communicator, num_ranks: int, case: Case) -> Outcome:
    schedule = case.table(num_ranks)
    split = split_of(case.model, schedule.num_stages, case.dtype, exported=case.exported)
    with PipelineExecutor(schedule, split, comm, LOSSES[case.model], exact=case.exact, timeout=60) as executor:
        batch = batch_of(case.model, split, schedule, executor.replica, executor.num_replicas, case.dtype)
        for _ in range(NUM_STEPS):
            executor.step(batch)
        found = {
            name: parameter.grad
            for stage in executor.trained_stages()
            for name, parameter in split.stages[stage].parameters().items()
        }
        if "dropout" in case.model:
            wanted = gradients_of_stages_in_turn(case.model, schedule, NUM_STEPS - 1, case.dtype)
        else:
            wanted = gradients_of_one_process(case.model, schedule, executor.num_replicas, case.dtype)
    return Outcome(tuple(same(found, wanted)), len(found))


def batch_of(
    model: str, split: SplitModel, schedule: PipelineSchedule, replica: int, num_replicas: int, dtype: torch.dtype
) -> list[MicroBatch]:
    """Return the micro-batches of a replica."""
    size = schedule.num_micro_batches
    data = data_of(model, num_replicas * size, dtype)[replica * size : (replica + 1) * size]
    return [MicroBatch(dict(zip(split.batch_inputs, inputs, strict=True)), target) for inputs, target in data]
