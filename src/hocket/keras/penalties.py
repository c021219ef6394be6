"""The terms that regularizers of weights add to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hocket.keras.parts import ModelParts
from hocket.keras.replay import Replays


class Penalties:
    """The penalties of some variables.

    Args:
        variables: variables; those that are trained and have a regularizer count.
        without_keras: whether to compute the penalties without Keras, once its torch calls are captured.
    """

    def __init__(self, variables: Sequence[Any], without_keras: bool) -> None:
        self._variables = variables
        self._without_keras = without_keras
        self._ids: list[tuple[int, int]] = []
        self._replays: Replays | None = None

    def __call__(self) -> list[torch.Tensor]:
        """Return the penalties."""
        regularized = [each for each in self._variables if each.trainable and each.regularizer is not None]
        if not regularized:
            return []

        def by_keras(_: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [torch.as_tensor(each.regularizer(each)) for each in regularized]

        if not self._without_keras:
            return by_keras([])
        ids = [(id(each), id(each.regularizer)) for each in regularized]
        if self._replays is None or ids != self._ids:
            parts = {id(each.regularizer): each.regularizer for each in regularized}
            self._ids, self._replays = ids, Replays(ModelParts(list(parts.values()), regularized))
        return list(self._replays.of([], is_training=True).run([], by_keras))

    def forget_if_changed(self) -> None:
        """Discard what was captured if a regularizer has changed."""
        if self._replays is not None:
            self._replays.forget_if_changed()

    @property
    def obstacle(self) -> str | None:
        """Why Keras computes the penalties, or None."""
        return self._replays.obstacle if self._replays is not None else None
