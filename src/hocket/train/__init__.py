"""Training through pipeline schedules: models split over ranks, with the gradients of one process.

Names are loaded when they are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.train.actions.registry import executes
    from hocket.train.arrangement import Arrangement, arrange
    from hocket.train.batches import Batch, source_of
    from hocket.train.callbacks import Callback, Checkpoint, EarlyStopping, LearningRate
    from hocket.train.executor import MicroBatch, PipelineExecutor, StepResult
    from hocket.train.fitting import fit, run_epochs
    from hocket.train.history import History
    from hocket.train.layer_graph import Layer, LayerGraph
    from hocket.train.models import graph_of
    from hocket.train.module_stage import ModuleStage
    from hocket.train.plan import Plan, plan_ranks, plan_schedule, plan_training
    from hocket.train.randomness import random_key
    from hocket.train.split_model import SplitModel
    from hocket.train.stage import Stage
    from hocket.train.trainer import Trainer
    from hocket.train.update import TorchUpdate

__all__ = [
    "Arrangement",
    "Batch",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "History",
    "Layer",
    "LayerGraph",
    "LearningRate",
    "MicroBatch",
    "ModuleStage",
    "PipelineExecutor",
    "Plan",
    "SplitModel",
    "Stage",
    "StepResult",
    "TorchUpdate",
    "Trainer",
    "arrange",
    "executes",
    "fit",
    "graph_of",
    "plan_ranks",
    "plan_schedule",
    "plan_training",
    "random_key",
    "run_epochs",
    "source_of",
]

_HOMES = {
    "Arrangement": "arrangement",
    "Batch": "batches",
    "Callback": "callbacks",
    "Checkpoint": "callbacks",
    "EarlyStopping": "callbacks",
    "History": "history",
    "Layer": "layer_graph",
    "LayerGraph": "layer_graph",
    "LearningRate": "callbacks",
    "MicroBatch": "executor",
    "ModuleStage": "module_stage",
    "PipelineExecutor": "executor",
    "Plan": "plan",
    "SplitModel": "split_model",
    "Stage": "stage",
    "StepResult": "executor",
    "TorchUpdate": "update",
    "Trainer": "trainer",
    "arrange": "arrangement",
    "executes": "actions.registry",
    "fit": "fitting",
    "graph_of": "models",
    "plan_ranks": "plan",
    "plan_schedule": "plan",
    "plan_training": "plan",
    "random_key": "randomness",
    "run_epochs": "fitting",
    "source_of": "batches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
