"""Messages, in tables that name them; elsewhere forward and backward passes send and take what they have to."""

from hocket.pipeline.action import Action
from hocket.train.actions.registry import executes
from hocket.train.step import Step


@executes("SEND_F")
def send_output(step: Step, action: Action) -> None:
    step.send(action, is_gradient=False)


@executes("RECV_F")
def receive_input(step: Step, action: Action) -> None:
    step.receive(action, is_gradient=False)


@executes("SEND_B")
def send_gradient(step: Step, action: Action) -> None:
    step.send(action, is_gradient=True)


@executes("RECV_B")
def receive_gradient(step: Step, action: Action) -> None:
    step.receive(action, is_gradient=True)
