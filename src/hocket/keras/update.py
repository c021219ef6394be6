"""A Keras optimizer that changes the variables of this rank's stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import torch

from hocket.errors import InvalidModel
from hocket.train import PipelineExecutor


class KerasUpdate:
    """The optimizer that a model was compiled with: every rank applies it to what it trains.

    Args:
        optimizer: of the model; is built for all of its variables.
        variables: trainable ones of the model, in its order.
        executor: of the model.

    Raises:
        InvalidModel: the optimizer scales losses by what it finds out, which pipelines do not, clips by the norm of
            gradients that it accumulates, which no rank has, or was built without one of the variables.
    """

    def __init__(self, optimizer: Any, variables: Iterable[Any], executor: PipelineExecutor) -> None:
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise InvalidModel("the optimizer scales the loss (mixed_float16); train in float32 or bfloat16")
        if optimizer.gradient_accumulation_steps and optimizer.global_clipnorm:
            raise InvalidModel(
                "the optimizer has gradient_accumulation_steps and global_clipnorm: take a larger batch, or clipnorm"
            )
        self.optimizer = optimizer
        self._executor = executor
        self._variables = list(variables)
        if not optimizer.built:
            optimizer.build(self._variables)
        known = {id(each) for each in optimizer._trainable_variables}
        for each in self._variables:
            if id(each) not in known:
                raise InvalidModel(
                    f"{type(optimizer).__name__} was built without {each.path!r}, as before it was set to be trained, "
                    "or by another model: compile the model again"
                )
        stages = {
            id(each): stage
            for stage in reversed(range(executor.split.num_stages))
            for each in executor.split.stages[stage].parameters().values()
        }
        # What is no longer trained has none, and is the same on every rank.
        self._stages = [stages.get(id(each.value)) for each in optimizer._trainable_variables]
        held = set(executor.trained_stages())
        own = {id(each) for stage in held for each in executor.split.stages[stage].parameters().values()}
        self._own = [each for each in self._variables if id(each.value) in own]

    def step(self, *, has_weight: bool = True) -> None:
        """Change the variables of this rank; where no item of the batch counts, by gradients of 0, as Keras does."""
        values = [each.value for each in self._own]
        pairs = [
            (torch.zeros_like(value) if value.grad is None else value.grad, each)
            for value, each in zip(values, self._own, strict=True)
            if value.grad is not None or not has_weight
        ]
        if self.optimizer.loss_scale_factor is not None:  # which `apply` divides by, as Keras multiplies the loss
            pairs = [(gradient * self.optimizer.loss_scale_factor, each) for gradient, each in pairs]
        limit = self.optimizer.global_clipnorm
        if limit is not None:
            scale = limit / max(self._norm(), limit)
            pairs = [(gradient * scale, each) for gradient, each in pairs]
        try:
            self.optimizer.global_clipnorm = None  # would be the norm of this rank's gradients alone
            with torch.no_grad():
                if pairs:
                    self.optimizer.apply([gradient for gradient, _ in pairs], [each for _, each in pairs])
                else:
                    self._step_without_gradients()
        finally:
            self.optimizer.global_clipnorm = limit

    def finalize(self) -> None:
        """Have all variables their averages over time, if the optimizer keeps such; on every rank, after `collect`."""
        self.optimizer.finalize_variable_values(self._variables)

    @property
    def num_steps(self) -> int:
        """How many were taken."""
        return int(self.optimizer._iterations.value)

    def collect(self) -> None:
        """Give every rank the optimizer's averages of all variables; called by all ranks."""
        comm = self._executor.comm
        with torch.no_grad():
            for slots in self._slots():
                for slot, stage in zip(slots, self._stages, strict=True):
                    if slot is not None and stage is not None:
                        comm.broadcast(slot.value.detach(), self._executor.holders(stage)[0])

    def state(self) -> Mapping[str, Any]:
        """Return the values of all of the optimizer's variables; called by all ranks."""
        self.collect()
        return {each.path: each.value.detach().clone() for each in self.optimizer.variables}

    def merge(self, states: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the first one: all are the same."""
        return next(iter(states))

    def load(self, state: Mapping[str, Any]) -> None:
        """Set the optimizer's variables.

        Raises:
            KeyError: one is not in the state.
            ValueError: one has another shape there.
        """
        values = [(each, state[each.path]) for each in self.optimizer.variables]
        for variable, value in values:
            if tuple(value.shape) != tuple(variable.shape):
                raise ValueError(f"{variable.path} is {tuple(value.shape)} there and {tuple(variable.shape)} here")
        for variable, value in values:
            variable.assign(value)

    def _step_without_gradients(self) -> None:
        """What the optimizer does in every step, beside variables that have gradients: it counts, for schedules of the
        learning rate and as Nadam does, and keeps averages over time."""
        optimizer = self.optimizer
        every = optimizer.gradient_accumulation_steps
        if isinstance(optimizer, keras.optimizers.Nadam) and (not every or (self.num_steps + 1) % every == 0):
            product = optimizer._u_product
            step = keras.ops.cast(optimizer.iterations + 1, product.dtype)
            decay, beta_1 = (keras.ops.cast(each, product.dtype) for each in (0.96, optimizer.beta_1))
            product.assign(product.value * (beta_1 * (1.0 - 0.5 * keras.ops.power(decay, step))))
        if optimizer.use_ema:
            variables = optimizer._trainable_variables
            optimizer._update_model_variables_moving_average(variables)
            every = optimizer.ema_overwrite_frequency
            if every and (int(optimizer.iterations) + 1) % every == 0:
                optimizer._overwrite_model_variables_with_average_value(variables)
        optimizer._iterations.assign_add(1)

    def _slots(self) -> list[list[Any]]:
        """Lists of variables of the optimizer that have one for each that it was built for, or none for some."""
        return [
            value
            for value in vars(self.optimizer).values()
            if isinstance(value, list)
            and value is not self.optimizer._trainable_variables
            and len(value) == len(self._stages)
            and all(each is None or isinstance(each, keras.Variable) for each in value)
        ]

    def _norm(self) -> float:
        """The norm of all gradients of the model."""
        squares = torch.zeros((), dtype=torch.float64)
        for each in self._own:
            if each.value.grad is not None and self._executor.speaks_for(each.value):
                squares += each.value.grad.double().square().sum()
        self._executor.comm.all_reduce(squares, timeout=self._executor.timeout_s)
        return float(squares.sqrt())
