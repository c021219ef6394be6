"""Forward passes, and repeated forward passes."""

from hocket.pipeline.action import Action
from hocket.train.run.actions.registry import executes
from hocket.train.run.step import Step


@executes("F")
def forward(step: Step, action: Action) -> None:
    for micro_batch in action.micro_batches:
        step.forward(action, micro_batch)


@executes("R")
def recompute(step: Step, action: Action) -> None:
    for micro_batch in action.micro_batches:
        step.recompute(action, micro_batch)
