"""The metrics that a model was compiled with, over all ranks that see its outputs."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hocket.train import PipelineExecutor


class KerasMeter:
    """Metrics of a compiled model. Their variables are sums over samples, which are added up over ranks.

    Args:
        metrics: of the model (`CompileMetrics`); None: it has none.
        executor: of the model.
    """

    def __init__(self, metrics: Any, executor: PipelineExecutor) -> None:
        self._metrics = metrics
        self._executor = executor
        self._root = executor.holders(executor.split.num_stages - 1)[0]

    def update(self, output: Any, target: Any) -> None:
        """Add a micro-batch."""
        if self._metrics is not None:
            y, weight = target
            self._metrics.update_state(y, output, weight)

    def result(self) -> dict[str, float]:
        """Return the metrics, and begin anew."""
        if self._metrics is None:
            return {}
        comm = self._executor.comm
        own = [np.array(keras.ops.convert_to_numpy(each)) for each in self._metrics.variables]
        of_ranks = comm.gather_object(own, self._root)
        found: dict[str, float] = {}
        if comm.rank == self._root:
            seen = [values for values in of_ranks or () if values]
            for variable, *values in zip(self._metrics.variables, *seen, strict=True):
                variable.assign(sum(values[1:], values[0]))
            found = {name: float(value) for name, value in self._metrics.result().items()}
        self._metrics.reset_state()
        given: dict[str, float] = comm.broadcast_object(found, self._root)
        return given
