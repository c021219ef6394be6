"""Training through pipeline schedules: models split over ranks, with the gradients of one process.

Names are loaded when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.train.actions.registry import executes
    from hocket.train.executor import MicroBatch, PipelineExecutor, StepResult
    from hocket.train.layer_graph import Layer, LayerGraph
    from hocket.train.models import graph_of
    from hocket.train.randomness import random_key
    from hocket.train.split_model import SplitModel
    from hocket.train.stage import Stage

__all__ = [
    "Layer",
    "LayerGraph",
    "MicroBatch",
    "PipelineExecutor",
    "SplitModel",
    "Stage",
    "StepResult",
    "executes",
    "graph_of",
    "random_key",
]

_HOMES = {
    "Layer": "layer_graph",
    "LayerGraph": "layer_graph",
    "MicroBatch": "executor",
    "PipelineExecutor": "executor",
    "SplitModel": "split_model",
    "Stage": "stage",
    "StepResult": "executor",
    "executes": "actions.registry",
    "graph_of": "models",
    "random_key": "randomness",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
