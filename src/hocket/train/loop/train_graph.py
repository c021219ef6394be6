"""Train a graph of layers of any library on all ranks of a communicator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hocket.comm import Communicator
from hocket.measure.pictures import check_picture_path
from hocket.train.checks import check_alike
from hocket.train.data.batches import Samples, Source, Stream
from hocket.train.data.micro_batches import first_inputs
from hocket.train.engines.registry import EngineChoice
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
    """The sources of a training.

    Args:
        source: source of the batches for training.
        validation: source of the batches for the evaluation after epochs; None: no evaluation.
        examples: source whose first batch is used to measure layers and to simulate a step.

    Examples:
        >>> request = hk.train.TrainingRequest(
        ...     hk.train.SetupRequest(batch_size=8),
        ...     loss=lambda outputs, targets: (outputs - targets).square().mean(),
        ...     make_trainer=lambda executor: None,  # see `train_graph` for one that trains
        ...     finish=lambda trainer, history: None,
        ...     epochs=3,
        ... )
        >>> request.check_alike(comm, learning_rate=0.1)  # called by all ranks before `train_graph`
    """

    source: Source
    validation: Source | None
    examples: Samples | Stream


@dataclass(frozen=True)
class TrainingRequest:
    """A user's request for a training, and the functions of the model's library that it needs.

    Args:
        setup: request for the set-up.
        loss: (output, target) -> scalar, for a micro-batch.
        make_trainer: (executor) -> trainer.
        finish: called by all ranks after the last epoch, before the executor is closed.
        check_setup: checks the chosen set-up before parameters are changed or sent; None: no check.
        epochs: number of epochs to train.
        max_steps: number of steps after which the training ends, in any epoch; None: no limit.
        counts_from_here: whether `max_steps` counts the steps of this call only.
        validates: (index of an epoch) -> whether an evaluation follows it; None: after every epoch.
        logs_speed: whether the numbers of an epoch have "samples_per_s".
        exact, seed, timeout_s, engine, messages: see `PipelineExecutor`.
        picture: path of a picture of a step, simulated and measured; None: no picture.
        shows: show progress on rank 0.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> request = hk.train.TrainingRequest(
        ...     hk.train.SetupRequest(batch_size=8, num_micro_batches=2),
        ...     loss=torch.nn.functional.mse_loss,
        ...     make_trainer=lambda executor: hk.train.Trainer(
        ...         executor, hk.train.TorchUpdate(optimizer, model[executor.rank].parameters())
        ...     ),
        ...     finish=lambda trainer, history: trainer.collect(),
        ...     epochs=3,
        ... )
        >>> request.check_alike(comm, learning_rate=0.1)  # called by all ranks before `train_graph`
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
    engine: EngineChoice = field(default_factory=EngineChoice)
    messages: str | None = None
    picture: Path | None = None
    shows: bool = True

    def check_alike(self, comm: Communicator, **options: Any) -> None:
        """Check that the requests of all ranks are equal, and that a picture can be drawn.

        All ranks call it before they read data.

        Args:
            comm: a communicator of all ranks.
            options: further picklable values that must be equal on all ranks, by name.

        Raises:
            InvalidArgument: a value differs between ranks; raised on every rank.
        """
        balance = self.setup.balance
        check_alike(
            comm,
            epochs=self.epochs,
            max_steps=self.max_steps,
            exact=self.exact,
            engine=self.engine,
            messages=self.messages,
            seed=self.seed,
            draws=self.picture is not None,
            # These determine which ranks measure. The executor compares the results of the other arguments.
            strategy=self.setup.strategy,
            balance=balance if isinstance(balance, str) else list(balance),
            **options,
        )
        if self.picture is not None:
            check_picture_path(self.picture)


def train_graph(graph: LayerGraph, data: TrainingData, request: TrainingRequest, comm: Communicator) -> History:
    """Train a graph of layers; called by all ranks, after `TrainingRequest.check_alike`.

    Args:
        graph: layers of the model.
        data: sources of the batches.
        request: the user's request.
        comm: a communicator of all ranks.

    Returns:
        The numbers of every epoch.

    Raises:
        InvalidArgument, InvalidType, InvalidModel: an argument cannot be used; raised on every rank.
        Aborted: another rank failed; the message names the rank and its error.
        CommTimeout, PeerFailure: a rank hangs, or has died; the message names the rank, and what was waited for.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> request = hk.train.TrainingRequest(
        ...     hk.train.SetupRequest(batch_size=8, num_micro_batches=2),
        ...     loss=torch.nn.functional.mse_loss,
        ...     make_trainer=lambda executor: hk.train.Trainer(
        ...         executor, hk.train.TorchUpdate(optimizer, model[executor.rank].parameters())
        ...     ),
        ...     finish=lambda trainer, history: trainer.collect(),
        ...     epochs=3, shows=False,
        ... )
        >>> arrays = (np.ones((8, 2), np.float32), np.ones((8, 1), np.float32))
        >>> source = hk.train.source_of(arrays, comm, batch_size=8, shuffle=True, seed=0, drop_last=False)
        >>> data = hk.train.TrainingData(source, None, source)
        >>> hk.train.train_graph(hk.train.graph_of(model), data, request, comm).epoch
        [0, 1, 2]
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
        engine=request.engine,
        messages=request.messages,
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
        if request.messages is not None:
            history.messages = executor.explain_messages()
        request.finish(trainer, history)
        if request.picture is not None and history.batch_losses:
            inputs = first_inputs(data.examples, setup.split.batch_inputs, executor.num_micro_batches)
            compare_with_simulation(executor, inputs, request.picture)
    return history
