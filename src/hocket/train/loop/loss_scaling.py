"""Scaling of losses, so that gradients in half precision do not vanish, by torch's GradScaler in equal states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from hocket.errors import InvalidType
from hocket.train.loop.callback import Callback
from hocket.train.run.executor import PipelineExecutor


class LossScaling(Callback):
    """Scales gradients up while they are computed, and down before they are used; skips a step in which a gradient of
    any rank is infinite or not a number. The scaler changes the scale, which is equal on all ranks.

    Args:
        scaler: a `torch.amp.GradScaler`; a disabled one scales nothing.

    Raises:
        InvalidType: `scaler` is not a GradScaler.

    Reference: Micikevicius et al., Mixed Precision Training (2018), section 3.2.
    """

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        if not isinstance(scaler, torch.amp.GradScaler):
            raise InvalidType(f"scaler must be a torch.amp.GradScaler, not a {type(scaler).__name__}")
        self._scaler = scaler
        # The scaler learns of an overflow from the gradient of this parameter, which exists on every rank.
        self._signal = nn.Parameter(torch.zeros(1))
        self._signal_optimizer = torch.optim.SGD([self._signal], lr=0.0)
        self.overflows = False

    def scaled(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Return a loss with the same values and scaled gradients."""

        def scaled_loss(*arguments: Any) -> Any:
            value = loss(*arguments)
            if not isinstance(value, torch.Tensor):
                return value
            return _ScaledGradient.apply(value, self._scale())  # type: ignore[no-untyped-call]

        return scaled_loss

    def unscale(self, executor: PipelineExecutor) -> None:
        """Scale this rank's gradients down, and set `overflows` if those of any rank overflow; called by all ranks."""
        own = [each.grad for each in executor.split.model.parameters() if each.grad is not None]
        overflows = torch.zeros(1)
        if not all(bool(torch.isfinite(each).all()) for each in own):
            overflows.fill_(1)
        executor.comm.all_reduce(overflows, "max", timeout=executor.timeout_s)
        self.overflows = bool(overflows)
        if not self._scaler.is_enabled():
            self.overflows = False
            return
        for each in own:
            each.mul_(1 / self._scale())
        self._signal.grad = torch.full((1,), torch.inf if self.overflows else 0.0)
        self._scaler.scale(torch.zeros(1))  # the first call makes the scaler's state, which `step` needs
        self._scaler.step(self._signal_optimizer)
        before = self._scale()
        self._scaler.update()
        if self.overflows:
            executor.undo_kept_gradients()
        if self._scale() != before:
            executor.scale_kept_gradients(self._scale() / before)

    def state(self) -> Mapping[str, Any]:
        return self._scaler.state_dict()

    def load(self, state: Mapping[str, Any]) -> None:
        self._scaler.load_state_dict(dict(state))

    def _scale(self) -> float:
        return float(self._scaler.get_scale())


class _ScaledGradient(torch.autograd.Function):
    """Returns its input unchanged; multiplies the gradient by `scale`."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.scale, None
