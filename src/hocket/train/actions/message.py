"""Messages, in tables that name them; elsewhere forward and backward passes send and take what they have to."""

from hocket.pipeline.action import Action
from hocket.train.actions.registry import executes
from hocket.train.step import Step


@executes("SEND_F", "SEND_B")
def send(step: Step, action: Action) -> None:
    step.send(action, is_gradient=action.kind == "SEND_B")


@executes("RECV_F", "RECV_B")
def receive(step: Step, action: Action) -> None:
    step.receive(action, is_gradient=action.kind == "RECV_B")
