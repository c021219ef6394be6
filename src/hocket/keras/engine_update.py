"""The update of variables by a gradient engine that changes them itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hocket.errors import InvalidModel
from hocket.keras.served import KerasServedOptimizer
from hocket.keras.slots import count_step
from hocket.keras.update import KerasUpdate
from hocket.train import EngineChoice, PipelineExecutor
from hocket.train.loop.server_update import EngineUpdate


class KerasEngineUpdate(KerasUpdate):
    """Gives the gradients of a step to an engine, which has copies of the model's optimizer.

    The engine begins with the values that variables have at the first step, so that a callback may set them before it.

    Args:
        optimizer, variables: see `KerasUpdate`.
        executor: executor of one replica on every rank.
        choice: the engine.

    Raises:
        InvalidArgument: the engine cannot have copies of the optimizer.
        InvalidModel: see `KerasUpdate`.
    """

    is_elsewhere = True

    def __init__(
        self, optimizer: Any, variables: Iterable[Any], executor: PipelineExecutor, choice: EngineChoice
    ) -> None:
        variables = list(variables)
        super().__init__(optimizer, variables, executor)
        parameters = [each for each in executor.split.parameters().values() if each.requires_grad]
        self._parameters = parameters
        self._served = KerasServedOptimizer(optimizer, variables, parameters)
        self._choice = choice
        self._engine: EngineUpdate | None = None

    def step(self, *, has_weight: bool = True) -> None:
        """See `KerasUpdate.step`."""
        if self._engine is None:
            self._engine = EngineUpdate(self._executor, self._choice, self._served)
        if not has_weight:
            for each in self._parameters:
                each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        self._engine.step(has_weight=has_weight)
        count_step(self.optimizer)

    def collect(self) -> None:
        """Set the variables of all ranks to those of the servers, and the optimizer's too; called by all ranks."""
        if self._engine is not None:
            comm = self._executor.comm
            comm.barrier(timeout=self._executor.timeout_s)
            if comm.rank == 0:  # the others wait for its values, and so change nothing meanwhile
                self._engine.engine.pull()
            with torch.no_grad():
                for each in self._parameters:
                    comm.broadcast(each.detach(), 0, timeout=self._executor.timeout_s)
        super().collect()

    def end(self) -> None:
        """See `KerasUpdate.end`."""
        self.collect()
        if self._engine is not None:
            self._engine.engine.close()
            self._engine = None

    def check_written(self, variables: Iterable[Any]) -> None:
        """See `KerasUpdate.check_written`."""
        if self._engine is None:
            return
        slots = {id(each) for slots in self._slots() for each in slots if each is not None}
        kept = slots | {id(each) for each in self._variables} | {id(self.optimizer._iterations)}
        for each in variables:
            if id(each) in kept:
                raise InvalidModel(
                    f"a callback has written to {each.path!r}, which the servers of engine {self._choice.name!r} have: "
                    "write before the first step or after the last one, or use an engine that sums"
                )
