"""Backward passes, whole or in two parts."""

from hocket.pipeline.action import Action
from hocket.train.run.actions.registry import executes
from hocket.train.run.step import Step


@executes("B")
def backward(step: Step, action: Action) -> None:
    for micro_batch in action.micro_batches:
        step.backward(action, micro_batch, inputs_only=False)


@executes("I")
def inputs(step: Step, action: Action) -> None:
    for micro_batch in action.micro_batches:
        step.backward(action, micro_batch, inputs_only=True)


@executes("W")
def weights(step: Step, action: Action) -> None:
    for micro_batch in action.micro_batches:
        step.weights(action, micro_batch)
