"""The update of parameters by a gradient engine that changes them itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hocket.errors import InvalidArgument
from hocket.train.engines.engine import TensorSpec, UpdatingEngine
from hocket.train.engines.registry import EngineChoice
from hocket.train.engines.servers.optimizers import ServedOptimizer
from hocket.train.run.executor import PipelineExecutor


class EngineUpdate:
    """Gives the gradients of a step to an engine, which changes the parameters.

    Args:
        executor: executor of one replica on every rank.
        choice: the engine.
        optimizer: optimizer of all trained parameters.
    """

    def __init__(
        self, executor: PipelineExecutor, choice: EngineChoice, optimizer: torch.optim.Optimizer | ServedOptimizer
    ) -> None:
        named = {name: each for name, each in executor.split.parameters().items() if each.requires_grad}
        self._parameters = list(named.values())
        self._num_replicas = executor.num_replicas
        self.engine: UpdatingEngine = choice.make_updating(
            executor.comm,
            [TensorSpec(name, tuple(each.shape), each.dtype) for name, each in named.items()],
            self._parameters,
            optimizer,
            timeout_s=executor.timeout_s,
        )
        executor.before_close(self.engine.abandon)

    def step(self, *, has_weight: bool = True) -> None:
        """Give the gradients away, and set the parameters to their new values."""
        gradients = [each.grad for each in self._parameters]
        # The loss of a batch is a mean over all replicas; here each replica's own samples count as a batch.
        torch._foreach_mul_([each for each in gradients if each is not None], float(self._num_replicas))
        self.engine.exchange(gradients)

    def state(self) -> Mapping[str, Any]:
        """Raise an error: the servers have the optimizer's state.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            "the training cannot be saved: the parameter servers have the optimizer's state; save the model after it, "
            "or use an engine that sums"
        )

    def merge(self, states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Raise an error, as `state`."""
        return self.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Raise an error, as `state`."""
        self.state()
