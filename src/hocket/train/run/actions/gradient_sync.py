"""Sums of gradients over copies of a stage."""

from hocket.pipeline.action import Action
from hocket.train.run.actions.registry import executes
from hocket.train.run.step import Step


@executes("SYNC_START")
def start(step: Step, action: Action) -> None:
    step.copies.start(action.stage)


@executes("SYNC_WAIT")
def wait(step: Step, action: Action) -> None:
    step.copies.wait(action.stage)
