"""Trains a graph of layers on all ranks of a communicator, whatever library the layers are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hocket.comm import Communicator
from hocket.measure.pictures import check_picture_path
from hocket.train.checks import check_alike
from hocket.train.data.batches import Samples, Source, Stream
from hocket.train.data.micro_batches import first_inputs
from hocket.train.loop.epochs import run_epochs
from hocket.train.loop.history import History
from hocket.train.loop.trainer import Trainer
from hocket.train.model.layer_graph import LayerGraph
from hocket.train.run.executor import PipelineExecutor
from hocket.train.run.loss import Loss
from hocket.train.setup.choose_setup import choose_setup
from hocket.train.setup.comparison import compare_with_simulation
from hocket.train.setup.setup_request import SetupRequest
from hocket.train.setup.training_setup import TrainingSetup


@dataclass(frozen=True)
class TrainingData:
    """Where the batches of a training come from.

    Args:
        source: of the batches that are trained on.
        validation: of those that are evaluated after epochs; None: none are.
        examples: whose first batch layers are measured with, and a step is simulated with.
    """

    source: Source
    validation: Source | None
    examples: Samples | Stream


@dataclass(frozen=True)
class TrainingRequest:
    """What a user wants of a training, and what the library of the model has to do with it.

    Args:
        setup: how it is laid out.
        loss: (output, target) -> scalar, of a micro-batch.
        make_trainer: makes the trainer of an executor.
        check_setup: checks the set-up that was chosen, before parameters are changed or sent; None: any will do.
        finish: called by all ranks after the last epoch, while the executor is there.
        epochs: to train.
        max_steps: after which it ends, whatever the epoch.
        counts_from_here: whether `max_steps` counts the steps of this call alone.
        validates: whether an evaluation follows an epoch of that number, counted from 0; None: each.
        logs_speed: whether the numbers of an epoch have "samples_per_s".
        exact, seed, timeout_s: as of `PipelineExecutor`.
        picture: a file for a picture of the last step, as it was simulated and as it was.
        shows: progress, on rank 0.
    """

    setup: SetupRequest
    loss: Loss
    make_trainer: Callable[[PipelineExecutor], Trainer]
    finish: Callable[[Trainer, History], None]
    check_setup: Callable[[TrainingSetup], None] | None = None
    epochs: int = 1
    max_steps: int | None = None
    counts_from_here: bool = False
    validates: Callable[[int], bool] | None = None
    logs_speed: bool = True
    exact: bool = False
    seed: int = 0
    timeout_s: float | None = None
    picture: Path | None = None
    shows: bool = True

    def check_alike(self, comm: Communicator, **options: Any) -> None:
        """Check that all ranks want the same, and that a picture can be drawn; called by all of them, before they read
        data.

        Args:
            comm: of all ranks.
            options: further numbers, words and the like that have to be equal, by name.

        Raises:
            InvalidArgument: they are not; raised on every rank.
        """
        balance = self.setup.balance
        check_alike(
            comm,
            epochs=self.epochs,
            max_steps=self.max_steps,
            exact=self.exact,
            seed=self.seed,
            draws=self.picture is not None,
            # What decides who measures; what follows from the rest the executor compares.
            strategy=self.setup.strategy,
            balance=balance if isinstance(balance, str) else list(balance),
            **options,
        )
        if self.picture is not None:
            check_picture_path(self.picture)


def train_graph(graph: LayerGraph, data: TrainingData, request: TrainingRequest, comm: Communicator) -> History:
    """Train; called by all ranks alike, after `TrainingRequest.check_alike`.

    Args:
        graph: of the model.
        data: to train on.
        request: what is wanted.
        comm: of all ranks.

    Raises:
        InvalidArgument, InvalidType, InvalidModel: something cannot work: raised on every rank.
        Aborted: another rank could not go on; says which, and what it raised.
        CommTimeout, PeerFailure: a rank hangs, or has died; names it and what was waited for.
    """
    shows = request.shows and comm.rank == 0
    setup = choose_setup(request.setup, graph, data.examples, comm, shows)
    if request.check_setup is not None:
        request.check_setup(setup)
    with PipelineExecutor(
        setup.schedule,
        setup.split,
        comm,
        request.loss,
        exact=request.exact,
        seed=request.seed,
        timeout=request.timeout_s,
    ) as executor:
        trainer = request.make_trainer(executor)
        history = run_epochs(
            trainer,
            data.source,
            request.epochs,
            data.validation,
            shows=shows,
            max_steps=request.max_steps,
            counts_from_here=request.counts_from_here,
            validates=request.validates or (lambda epoch: True),
            logs_speed=request.logs_speed,
        )
        history.plan = str(setup)
        request.finish(trainer, history)
        if request.picture is not None and history.batch_losses:
            inputs = first_inputs(data.examples, setup.split.batch_inputs, executor.num_micro_batches)
            compare_with_simulation(executor, inputs, request.picture)
    return history
