"""Training through pipeline schedules: models split over ranks, with the gradients of one process.

Names are loaded when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.train.actions.registry import executes
    from hocket.train.arrangement import Arrangement, arrange
    from hocket.train.averaging import AverageWeights
    from hocket.train.balance import balance_by_time
    from hocket.train.batches import Batch, source_of, sources_of
    from hocket.train.callbacks import Callback, Checkpoint, EarlyStopping, LearningRate
    from hocket.train.comparing import compare_with_simulation
    from hocket.train.epochs import run_epochs
    from hocket.train.executor import MicroBatch, PipelineExecutor, StepResult
    from hocket.train.exported import graph_of_exported
    from hocket.train.fitting import fit
    from hocket.train.history import History
    from hocket.train.layer_costs import StageCosts, costs_of_stages, profile_layers, profile_stages
    from hocket.train.layer_graph import Layer, LayerGraph
    from hocket.train.link import measure_link
    from hocket.train.models import graph_of
    from hocket.train.module_stage import ModuleStage
    from hocket.train.plan import Plan, plan_ranks, plan_schedule, plan_training
    from hocket.train.randomness import random_key
    from hocket.train.settling import Wanted, first_inputs, settle, settle_without_measuring
    from hocket.train.split_model import SplitModel
    from hocket.train.stage import Stage
    from hocket.train.trainer import Trainer
    from hocket.train.update import SeveralUpdates, TorchUpdate, read_optimizers

__all__ = [
    "Arrangement",
    "AverageWeights",
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
    "SeveralUpdates",
    "SplitModel",
    "Stage",
    "StageCosts",
    "StepResult",
    "TorchUpdate",
    "Trainer",
    "Wanted",
    "arrange",
    "balance_by_time",
    "compare_with_simulation",
    "costs_of_stages",
    "executes",
    "first_inputs",
    "fit",
    "graph_of",
    "graph_of_exported",
    "measure_link",
    "plan_ranks",
    "plan_schedule",
    "plan_training",
    "profile_layers",
    "profile_stages",
    "random_key",
    "read_optimizers",
    "run_epochs",
    "settle",
    "settle_without_measuring",
    "source_of",
    "sources_of",
]

__getattr__ = lazy(
    __name__,
    {
        "Arrangement": "arrangement",
        "AverageWeights": "averaging",
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
        "SeveralUpdates": "update",
        "SplitModel": "split_model",
        "Stage": "stage",
        "StageCosts": "layer_costs",
        "StepResult": "executor",
        "TorchUpdate": "update",
        "Trainer": "trainer",
        "Wanted": "settling",
        "arrange": "arrangement",
        "balance_by_time": "balance",
        "compare_with_simulation": "comparing",
        "costs_of_stages": "layer_costs",
        "executes": "actions.registry",
        "first_inputs": "settling",
        "fit": "fitting",
        "graph_of": "models",
        "graph_of_exported": "exported",
        "measure_link": "link",
        "plan_ranks": "plan",
        "plan_schedule": "plan",
        "plan_training": "plan",
        "profile_layers": "layer_costs",
        "profile_stages": "layer_costs",
        "random_key": "randomness",
        "read_optimizers": "update",
        "run_epochs": "epochs",
        "settle": "settling",
        "settle_without_measuring": "settling",
        "source_of": "batches",
        "sources_of": "batches",
    },
)
