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
        InvalidModel: there are several optimizers in one, or it clips by the norm of gradients that it accumulates,
            which no rank has, or it was built without one of the variables.
    """

    def __init__(self, optimizer: Any, variables: Iterable[Any], executor: PipelineExecutor) -> None:
        if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
            raise InvalidModel(
                "MultiOptimizer changes all variables at once, of which a rank has a part: take one optimizer"
            )
        # It scales losses by what it finds out, as mixed_float16 wants it, and leaves the rest to another one.
        self._scaler = optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else None
        self.optimizer = optimizer
        if self._scaler is not None:
            optimizer = self._scaler.inner_optimizer
        if optimizer.gradient_accumulation_steps and optimizer.global_clipnorm:
            raise InvalidModel(
                "the optimizer has gradient_accumulation_steps and global_clipnorm: take a larger batch, or clipnorm"
            )
        self._applied = optimizer
        self._executor = executor
        self._variables = list(variables)
        if not self.optimizer.built:
            self.optimizer.build(self._variables)
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
        self.read_scale()
        held = set(executor.trained_stages())
        own = {id(each) for stage in held for each in executor.split.stages[stage].parameters().values()}
        self._own = [each for each in self._variables if id(each.value) in own]

    def step(self, *, has_weight: bool = True) -> None:
        """Change the variables of this rank; where no item of the batch counts, by gradients of 0, as Keras does. Where
        losses are scaled, and a gradient on some rank is no number for that, change none."""
        optimizer = self._applied
        pairs = [
            (torch.zeros_like(each.value) if each.value.grad is None else each.value.grad, each)
            for each in self._own
            if each.value.grad is not None or not has_weight
        ]
        if self._scaler is not None:
            scale = self._executor.loss_scale
            if not self._are_finite([gradient for gradient, _ in pairs]):
                self._scaler._stateful_handle_non_finite_grads()
                self.read_scale()
                return
            pairs = [(gradient / scale, each) for gradient, each in pairs]
        if optimizer.loss_scale_factor is not None:  # which `apply` divides by, as Keras multiplies the loss
            pairs = [(gradient * optimizer.loss_scale_factor, each) for gradient, each in pairs]
        limit = optimizer.global_clipnorm
        if limit is not None:
            scale = limit / max(self._norm(), limit)
            pairs = [(gradient * scale, each) for gradient, each in pairs]
        try:
            optimizer.global_clipnorm = None  # would be the norm of this rank's gradients alone
            with torch.no_grad():
                if pairs:
                    optimizer.apply([gradient for gradient, _ in pairs], [each for _, each in pairs])
                else:
                    self._step_without_gradients()
        finally:
            optimizer.global_clipnorm = limit
        if self._scaler is not None:
            self._grow_scale(self._scaler)

    def _grow_scale(self, scaler: Any) -> None:
        """What Keras does after so many steps whose gradients were numbers."""
        if int(scaler.step_counter.value) == scaler.dynamic_growth_steps - 1:
            scaler.step_counter.assign(0)
            scaler.dynamic_scale.assign(scaler.dynamic_scale.value * 2.0)
        else:
            scaler.step_counter.assign(scaler.step_counter.value + 1)
        self.read_scale()

    def _are_finite(self, gradients: Iterable[torch.Tensor]) -> bool:
        """Whether those of all ranks are numbers."""
        broken = torch.zeros(1, dtype=torch.int64)
        broken += sum(not bool(torch.isfinite(each).all()) for each in gradients)
        self._executor.comm.all_reduce(broken, timeout=self._executor.timeout_s)
        return not int(broken)

    def known_everywhere(self) -> set[int]:
        """Return the ids of the optimizer's variables that every rank has as they are, at any time: its numbers."""
        slots = {id(each) for slots in self._slots() for each in slots if each is not None}
        return {id(each) for each in self.optimizer.variables} - slots

    def read_scale(self) -> None:
        """Have losses scaled as the optimizer now says, if it scales any."""
        if self._scaler is not None:
            self._executor.loss_scale = float(self._scaler.dynamic_scale.value)

    def finalize(self) -> None:
        """Have all variables their averages over time, if the optimizer keeps such; on every rank, after `collect`."""
        self.optimizer.finalize_variable_values(self._variables)

    @property
    def num_steps(self) -> int:
        """How many were taken."""
        return int(self._applied._iterations.value)

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
        self.read_scale()

    def _step_without_gradients(self) -> None:
        """What the optimizer does in every step, beside variables that have gradients: it counts, for schedules of the
        learning rate and as Nadam does, and keeps averages over time."""
        optimizer = self._applied
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
            for value in vars(self._applied).values()
            if isinstance(value, list)
            and value is not self._applied._trainable_variables
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
        return float(squares.sqrt()) / self._executor.loss_scale
