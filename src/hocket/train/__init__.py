"""Training through pipeline schedules: models split over ranks, with the gradients of one process.

Names are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.train.data.batches import Batch, source_of, sources_of
    from hocket.train.data.micro_batches import MicroBatch, first_inputs
    from hocket.train.data.randomness import random_key
    from hocket.train.engines.engine import GradientEngine, TensorSpec
    from hocket.train.engines.exchange import GradientExchange
    from hocket.train.engines.registry import EngineChoice, gradient_engines
    from hocket.train.loop.average_weights import AverageWeights
    from hocket.train.loop.callback import Callback, TrainerView
    from hocket.train.loop.callbacks import Checkpoint, EarlyStopping, LearningRate
    from hocket.train.loop.epochs import run_epochs
    from hocket.train.loop.fit import fit
    from hocket.train.loop.history import History
    from hocket.train.loop.train_graph import TrainingData, TrainingRequest, train_graph
    from hocket.train.loop.trainer import Trainer
    from hocket.train.loop.update import SeveralUpdates, TorchUpdate, read_optimizers
    from hocket.train.model.graphs import graph_of, graph_of_exported
    from hocket.train.model.layer_graph import Layer, LayerGraph
    from hocket.train.model.module_stage import ModuleStage
    from hocket.train.model.split_model import SplitModel
    from hocket.train.model.stage import Stage
    from hocket.train.run.actions.registry import executes
    from hocket.train.run.executor import PipelineExecutor, StepResult
    from hocket.train.setup.arrangement import Arrangement, arrange
    from hocket.train.setup.balance import balance_by_time
    from hocket.train.setup.choose_setup import check_request, choose_setup
    from hocket.train.setup.comparison import compare_with_simulation
    from hocket.train.setup.cuts import cut_layers
    from hocket.train.setup.layer_costs import StageCosts, costs_of_stages, profile_layers, profile_stages
    from hocket.train.setup.link import measure_link
    from hocket.train.setup.schedule import make_schedule
    from hocket.train.setup.setup_request import SetupRequest
    from hocket.train.setup.training_setup import TrainingSetup

__all__ = [
    "Arrangement",
    "AverageWeights",
    "Batch",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "EngineChoice",
    "GradientEngine",
    "GradientExchange",
    "History",
    "Layer",
    "LayerGraph",
    "LearningRate",
    "MicroBatch",
    "ModuleStage",
    "PipelineExecutor",
    "SetupRequest",
    "SeveralUpdates",
    "SplitModel",
    "Stage",
    "StageCosts",
    "StepResult",
    "TensorSpec",
    "TorchUpdate",
    "Trainer",
    "TrainerView",
    "TrainingData",
    "TrainingRequest",
    "TrainingSetup",
    "arrange",
    "balance_by_time",
    "check_request",
    "choose_setup",
    "compare_with_simulation",
    "costs_of_stages",
    "cut_layers",
    "executes",
    "first_inputs",
    "fit",
    "gradient_engines",
    "graph_of",
    "graph_of_exported",
    "make_schedule",
    "measure_link",
    "profile_layers",
    "profile_stages",
    "random_key",
    "read_optimizers",
    "run_epochs",
    "source_of",
    "sources_of",
    "train_graph",
]

__getattr__ = lazy(__name__)
