"""Averages of weights over a training, such as exponential moving averages, of a split model."""

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

    Every rank averages the weights that it trains. When the training is saved and when it ends, all ranks receive the
    whole averaged model.

    Args:
        averaged: an averaged model that every rank made from the model that is trained.
        by: "step" or "epoch".
        first: index of the first step, or epoch, whose weights count; counted from 0.

    Raises:
        InvalidArgument: `by` is another word.
        InvalidType: `averaged` is not an AveragedModel.

    Examples:
        >>> import torch
        >>> from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
        >>> history = hk.train.fit(
        ...     model, (torch.ones(8, 2), torch.ones(8, 1)), loss=torch.nn.functional.mse_loss,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batch_size=4, num_micro_batches=2,
        ...     callbacks=[hk.train.AverageWeights(averaged)], comm=comm, show_progress=False
        ... )
        >>> averaged(torch.ones(3, 2)).shape, int(averaged.n_averaged)  # on every rank, after 2 steps
        (torch.Size([3, 1]), 2)
    """

    def __init__(self, averaged: AveragedModel, by: str = "step", first: int = 0) -> None:
        if not isinstance(averaged, AveragedModel):
            raise InvalidType(
                f"averaged must be a torch.optim.swa_utils.AveragedModel, not a {type(averaged).__name__}"
            )
        if by not in ("step", "epoch"):
            raise InvalidArgument(f'by must be "step" or "epoch", not {by!r}')
        self._averaged, self._by, self._first = averaged, by, first

    def on_train_begin(self, trainer: TrainerView) -> None:
        model = trainer.executor.split.model
        shapes = [each.shape for each in model.parameters()]
        if [each.shape for each in self._averaged.module.parameters()] != shapes:
            raise InvalidArgument(
                "averaged was made from a model with other parameters: make it from the model that is trained"
            )

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
        if not self._averaged.use_buffers:  # the averaged model then has the model's own buffers
            model = trainer.executor.split.model
            with torch.no_grad():
                for copy, buffer in zip(self._averaged.module.buffers(), model.buffers(), strict=True):
                    copy.copy_(buffer)
