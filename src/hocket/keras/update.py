"""The update of this rank's variables by a Keras optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import torch

from hocket.errors import InvalidModel
from hocket.keras.slots import slots_of, step_without_gradients
from hocket.train import PipelineExecutor


class KerasUpdate:
    """The optimizer that a model was compiled with; every rank applies it to the variables that it trains.

    Args:
        optimizer: optimizer of the model; it is built for all variables of the model.
        variables: trainable variables of the model, in order.
        executor: executor of the model.

    Raises:
        InvalidModel: the optimizer is a MultiOptimizer, or clips by the global norm of accumulated gradients, which no
            rank has, or was built without one of the variables.
    """

    def __init__(self, optimizer: Any, variables: Iterable[Any], executor: PipelineExecutor) -> None:
        if isinstance(optimizer, getattr(keras.optimizers, "MultiOptimizer", ())):
            raise InvalidModel(
                "MultiOptimizer changes all variables together, and a rank has only a part of them: use one optimizer"
            )
        # For mixed_float16: it scales losses and adapts the scale; its inner optimizer does the updates.
        self._scaler = optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else None
        self.optimizer = optimizer
        if self._scaler is not None:
            optimizer = self._scaler.inner_optimizer
        if optimizer.gradient_accumulation_steps and optimizer.global_clipnorm:
            raise InvalidModel(
                "the optimizer has gradient_accumulation_steps and global_clipnorm: use a larger batch, or clipnorm"
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
                    f"{type(optimizer).__name__} was built without {each.path!r}, perhaps before that was trainable or "
                    "for another model: compile the model again"
                )
        stages = {
            id(each): stage
            for stage in reversed(range(executor.split.num_stages))
            for each in executor.split.stages[stage].parameters().values()
        }
        # A variable that is no longer trained has no stage, and is equal on all ranks.
        self._stages = [stages.get(id(each.value)) for each in optimizer._trainable_variables]
        self.read_scale()
        held = set(executor.trained_stages())
        own = {id(each) for stage in held for each in executor.split.stages[stage].parameters().values()}
        self._own = [each for each in self._variables if id(each.value) in own]

    is_elsewhere = False
    """Whether the optimizer's variables change elsewhere, and have come from there only after `collect`."""

    def step(self, *, has_weight: bool = True) -> None:
        """Change the variables of this rank. If no item of the batch has a weight, use gradients of 0, as Keras does.
        If losses are scaled, and a gradient on some rank overflows, change no variable."""
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
        if optimizer.loss_scale_factor is not None:  # `apply` divides by it, since Keras multiplies the loss
            pairs = [(gradient * optimizer.loss_scale_factor, each) for gradient, each in pairs]
        limit = optimizer.global_clipnorm
        if limit is not None:
            scale = limit / max(self._norm(), limit)
            pairs = [(gradient * scale, each) for gradient, each in pairs]
        try:
            optimizer.global_clipnorm = None  # Keras would clip by the norm of this rank's gradients only
            with torch.no_grad():
                if pairs:
                    optimizer.apply([gradient for gradient, _ in pairs], [each for _, each in pairs])
                else:
                    step_without_gradients(optimizer)
        finally:
            optimizer.global_clipnorm = limit
        if self._scaler is not None:
            self._grow_scale(self._scaler)

    def _grow_scale(self, scaler: Any) -> None:
        """Double the scale after the scaler's number of steps with finite gradients, as Keras does."""
        if int(scaler.step_counter.value) == scaler.dynamic_growth_steps - 1:
            scaler.step_counter.assign(0)
            scaler.dynamic_scale.assign(scaler.dynamic_scale.value * 2.0)
        else:
            scaler.step_counter.assign(scaler.step_counter.value + 1)
        self.read_scale()

    def _are_finite(self, gradients: Iterable[torch.Tensor]) -> bool:
        """Return whether the gradients of all ranks are finite; called by all ranks."""
        num_overflows = torch.zeros(1, dtype=torch.int64)
        num_overflows += sum(not bool(torch.isfinite(each).all()) for each in gradients)
        self._executor.comm.all_reduce(num_overflows, timeout=self._executor.timeout_s)
        return not int(num_overflows)

    def known_everywhere(self) -> set[int]:
        """Return the ids of the optimizer's variables that are always equal on all ranks, such as the learning rate."""
        slots = {id(each) for slots in self._slots() for each in slots if each is not None}
        return {id(each) for each in self.optimizer.variables} - slots

    def read_scale(self) -> None:
        """Set the executor's scale of losses to the optimizer's present scale, if it has one."""
        if self._scaler is not None:
            self._executor.loss_scale = float(self._scaler.dynamic_scale.value)

    def end(self) -> None:
        """Make all variables those after the last step; called by all ranks."""
        self.collect()

    def check_written(self, variables: Iterable[Any]) -> None:
        """Check that a callback may write to variables now.

        Raises:
            InvalidModel: it may not.
        """

    def finalize(self) -> None:
        """Set all variables to their moving averages, if the optimizer keeps them; on every rank, after `collect`."""
        self.optimizer.finalize_variable_values(self._variables)

    @property
    def num_steps(self) -> int:
        """Number of steps that the optimizer has made."""
        return int(self._applied._iterations.value)

    def collect(self) -> None:
        """Send the optimizer's slots of all variables, such as averages of gradients, to all ranks; called by all
        ranks."""
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
        """Return the first state: all are equal."""
        return next(iter(states))

    def load(self, state: Mapping[str, Any]) -> None:
        """Set the optimizer's variables.

        Raises:
            KeyError: the state lacks a variable.
            ValueError: a variable has another shape in the state.
        """
        values = [(each, state[each.path]) for each in self.optimizer.variables]
        for variable, value in values:
            if tuple(value.shape) != tuple(variable.shape):
                raise ValueError(
                    f"{variable.path} has shape {tuple(value.shape)} in the state and {tuple(variable.shape)} here"
                )
        for variable, value in values:
            variable.assign(value)
        self.read_scale()

    def _slots(self) -> list[list[Any]]:
        return list(slots_of(self._applied).values())

    def _norm(self) -> float:
        """Return the norm of all gradients of the model; called by all ranks."""
        squares = torch.zeros((), dtype=torch.float64)
        for each in self._own:
            if each.value.grad is not None and self._executor.speaks_for(each.value):
                squares += each.value.grad.double().square().sum()
        self._executor.comm.all_reduce(squares, timeout=self._executor.timeout_s)
        return float(squares.sqrt()) / self._executor.loss_scale
