"""Averages of weights over a training, such as exponential moving averages, of a model whose parts ranks train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from hocket.errors import InvalidArgument, InvalidType
from hocket.train.loop.callback import Callback, TrainerView
from hocket.train.run.whole_model import collect_copy, merge_buffers


class AverageWeights(Callback):
    """Adds the model's weights to their average after every step, or after every epoch.

    Every rank averages what it trains; at the end of the training, and where it is saved, all ranks get the whole.

    Args:
        averaged: made of the model that is trained, which every rank does.
        by: "step" or "epoch".
        first: the number of the step, or of the epoch, from which on weights count; from 0.

    Raises:
        InvalidArgument, InvalidType: an argument cannot work.

    Example:
        >>> averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        >>> fit(model, data, callbacks=[AverageWeights(averaged)], ...)
        >>> averaged(x)  # the whole averaged model, on every rank
    """

    def __init__(self, averaged: AveragedModel, by: str = "step", first: int = 0) -> None:
        if not isinstance(averaged, AveragedModel):
            raise InvalidType(f"averaged is a torch.optim.swa_utils.AveragedModel, not a {type(averaged).__name__}")
        if by not in ("step", "epoch"):
            raise InvalidArgument(f'by is "step" or "epoch", not {by!r}')
        self._averaged, self._by, self._first = averaged, by, first

    def on_train_begin(self, trainer: TrainerView) -> None:
        model = trainer.executor.split.model
        shapes = [each.shape for each in model.parameters()]
        if [each.shape for each in self._averaged.module.parameters()] != shapes:
            raise InvalidArgument("averaged was made of another model than the one that is trained")

    def on_batch_end(self, trainer: TrainerView, step: int, logs: Mapping[str, float]) -> None:
        if self._by == "step" and step > self._first:
            self._averaged.update_parameters(trainer.executor.split.model)

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, Any]) -> None:
        if self._by == "epoch" and epoch >= self._first:
            self._averaged.update_parameters(trainer.executor.split.model)

    def on_save(self, trainer: TrainerView) -> None:
        self._collect(trainer)

    def on_train_end(self, trainer: TrainerView) -> None:
        self._collect(trainer)

    def state(self) -> Mapping[str, Any]:
        return dict(self._averaged.state_dict())

    def load(self, state: Mapping[str, Any]) -> None:
        self._averaged.load_state_dict(dict(state))

    def _collect(self, trainer: TrainerView) -> None:
        merge_buffers(trainer.executor)
        collect_copy(trainer.executor, self._averaged.module, with_buffers=self._averaged.use_buffers)
        if not self._averaged.use_buffers:  # they are the model's own
            model = trainer.executor.split.model
            with torch.no_grad():
                for copy, buffer in zip(self._averaged.module.buffers(), model.buffers(), strict=True):
                    copy.copy_(buffer)
