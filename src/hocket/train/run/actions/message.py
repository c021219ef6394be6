"""Messages as actions. In tables without such actions, forward and backward passes send and receive by themselves."""

from functools import partial

from hocket.train.run.actions.registry import executes
from hocket.train.run.step import Step

executes("SEND_F")(partial(Step.send, is_gradient=False))
executes("RECV_F")(partial(Step.receive, is_gradient=False))
executes("SEND_B")(partial(Step.send, is_gradient=True))
executes("RECV_B")(partial(Step.receive, is_gradient=True))
