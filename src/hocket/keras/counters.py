"""The counters of a model's random numbers, set to the values that Keras would leave."""

from __future__ import annotations

from typing import Any

import keras
import torch

from hocket.keras.stage import COUNTER, KerasStage
from hocket.train import PipelineExecutor


class Counters:
    """The counters of all seed generators of a model.

    Keras counts the draws of random numbers. In a pipeline, the counters are set from step, stage and micro-batch; at
    the end they are set to the values that they would have in Keras.

    Args:
        model: the model, before it is trained.
    """

    def __init__(self, model: keras.Model) -> None:
        found = {id(each): each for layer in model._flatten_layers() for each in layer._seed_generators}
        self._generators: list[Any] = list(found.values())
        self._first = [int(each.state.value[COUNTER]) for each in self._generators]

    def set_after(self, executor: PipelineExecutor, num_steps: int) -> None:
        """Set the counters to their values after `num_steps` steps of the whole model; called by all ranks."""
        drawn: dict[int, int] = {}
        places = {id(each): place for place, each in enumerate(self._generators)}
        for number in executor.trained_stages():
            stage = executor.split.stages[number]
            if isinstance(stage, KerasStage) and executor.holders(number)[0] == executor.comm.rank:
                for each, count in stage.num_drawn.items():
                    drawn[places[each]] = drawn.get(places[each], 0) + count
        totals = [0] * len(self._generators)
        for of_rank in executor.comm.all_gather_object(drawn):
            for place, count in of_rank.items():
                totals[place] += count
        with torch.no_grad():
            for each, first, total in zip(self._generators, self._first, totals, strict=True):
                each.state.value[COUNTER] = first + total * num_steps
