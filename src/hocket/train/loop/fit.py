"""Train a torch module on all ranks of a job, by a strategy and a pipeline schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.collectives import Compressor
from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidType
from hocket.pipeline.schedule import PipelineSchedule
from hocket.session import init
from hocket.train.checks import check_count
from hocket.train.data.batches import first_example, sources_of
from hocket.train.data.micro_batches import Weigh
from hocket.train.engines.registry import DEFAULT, EngineChoice
from hocket.train.loop.callback import Callback, check_callbacks
from hocket.train.loop.history import History
from hocket.train.loop.loss_scaling import LossScaling
from hocket.train.loop.metrics import Metric, read_metrics
from hocket.train.loop.server_update import EngineUpdate
from hocket.train.loop.train_graph import TrainingData, TrainingRequest, train_graph
from hocket.train.loop.trainer import Trainer
from hocket.train.loop.update import GivenOptimizer, Update, read_optimizers, update_of
from hocket.train.model.checks import check_content, check_model
from hocket.train.model.graphs import graph_of_example
from hocket.train.run.executor import PipelineExecutor
from hocket.train.run.loss import Loss, check_loss
from hocket.train.run.lossless import check_messages
from hocket.train.setup.setup_request import SetupRequest


def fit(
    model: nn.Module,
    data: Any,
    *,
    loss: Loss,
    optimizer: GivenOptimizer,
    epochs: int = 1,
    max_steps: int | None = None,
    batch_size: int = 32,
    strategy: str = "model",
    num_partitions: int | None = None,
    num_replicas: int | None = None,
    schedule: str | PipelineSchedule | None = None,
    schedule_options: Mapping[str, Any] | None = None,
    num_micro_batches: int | None = None,
    layers_per_partition: Sequence[int] | None = None,
    balance: str | Sequence[float] = "params",
    limit_nbytes: float | None = None,
    validation_data: Any = None,
    metrics: Mapping[str, Metric] | Iterable[str | Metric] = (),
    callbacks: Iterable[Callback] = (),
    shuffle: bool = True,
    drop_last: bool = False,
    max_gradient_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    weigh: Weigh | None = None,
    loss_is_mean: bool = True,
    engine: str = DEFAULT,
    engine_options: Mapping[str, Any] | None = None,
    gradients: Compressor | str | None = None,
    messages: str | None = None,
    exact: bool = False,
    recompute: bool = False,
    seed: int = 0,
    resume: str | Path | None = None,
    comm: Communicator | None = None,
    timeout: float | None = None,
    picture: str | Path | None = None,
    show_progress: bool = True,
) -> History:
    """Train a model on several ranks.

    All ranks of a job call it (``hocket run -n 4 train.py``). At the end every rank has the whole trained model.

    Args:
        model: a `torch.nn.Sequential`, or a module that torch.fx or torch.export can trace; equal modules on all ranks.
            All ranks begin with the parameters of rank 0.
        data: (x, y) of arrays or tensors, a dataset of such pairs, or an iterable of batches: see `source_of`.
        loss: (output, target) -> scalar, for a micro-batch.
        optimizer: an optimizer of the model's parameters; several optimizers, each of some parameters; or a function
            from parameters to an optimizer.
        epochs: number of epochs to train.
        max_steps: number of steps after which the training ends, in any epoch; None: no limit.
        batch_size: samples of a step, over all replicas.
        strategy: "data", "model", "hybrid", or "auto": measure the model, and use the set-up that is fastest in
            simulation.
        num_partitions, num_replicas: see `arrange`; None: derived from the strategy and the ranks.
        schedule: name of a pipeline schedule, or a table; None: "1f1b", or with "auto" chosen.
        schedule_options: options of the schedule, such as {"num_pairs": 2}.
        num_micro_batches: of a replica in one step; None: four for each partition, limited by the samples.
        layers_per_partition: number of layers of each stage; None: given by `balance`.
        balance: cost that is equalised between stages: "params", "flops", "profile" (measured time, with a short
            simulated step), or a number for each layer.
        limit_nbytes: with strategy "auto": limit of a rank's weights, gradients and activations, in bytes.
        validation_data: like `data`; evaluated after every epoch.
        metrics: "accuracy", or functions (output, target) -> number that are means over samples.
        callbacks: see `Callback`.
        shuffle, drop_last: see `source_of`.
        max_gradient_norm: gradients with a larger norm are scaled down to this norm; None: never.
        scaler: scales losses for gradients in half precision, and skips steps whose gradients overflow.
        weigh, loss_is_mean: see `Trainer`.
        engine: the gradient engine that sums gradients over copies of the model: see `gradient_engines`.
        engine_options: its options, such as {"num_servers": 2}.
        gradients: how they are compressed between copies, such as "ok-topk(density=0.01)" or "power-sgd(rank=2)": see
            `hocket.collectives.compressors`. What is lost is added to the gradients of the next step.
        messages: "lossless": what stages on different hosts send each other is packed into fewer bytes, from which
            every bit comes back; `History.messages` tells how many. None: it is sent as it is.
        exact: gradients equal those of one process bit for bit: see `PipelineExecutor`.
        recompute: keep only the inputs of stages, and repeat the forward pass before the backward pass.
        seed: seed of the order of samples, and of random numbers in the model.
        resume: a file that `Trainer.save` wrote; the training continues from it.
        comm: a communicator of all ranks; None: join the job, and leave it at the end.
        timeout: timeout in seconds of a rank that waits for another; None: the timeout of the communicator.
        picture: path of a picture of a step, simulated and measured; None: no picture.
        show_progress: show progress on rank 0.

    Returns:
        The numbers of every epoch.

    Raises:
        InvalidArgument, InvalidType, InvalidModel: an argument cannot be used; raised on every rank, before anything is
            sent.
        Aborted: another rank failed; the message names the rank and its error.
        CommTimeout, PeerFailure: a rank hangs, or has died; the message names the rank, and what was waited for.

    Examples:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> history = hk.train.fit(
        ...     model, (torch.ones(16, 2), torch.ones(16, 1)), loss=torch.nn.functional.mse_loss, epochs=3,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batch_size=8, comm=comm, show_progress=False
        ... )
        >>> history.plan
        '2 partitions x 1 replicas, 1f1b, 8 micro-batches, stages of 1, 2 layers'
        >>> len(history.batch_losses), history.history["loss"][-1] < history.history["loss"][0]
        (6, True)
    """
    with ExitStack() as stack:
        if comm is None:
            comm = stack.enter_context(init())
        choice = EngineChoice.of(engine, engine_options, gradients, is_scaled=scaler is not None)
        choice.check(exact=exact)
        check_messages(messages)
        if choice.updates and max_gradient_norm is not None:
            raise InvalidArgument(
                f"max_gradient_norm is not possible with engine {engine!r}: each rank's gradients are an update of "
                "their own, and no rank has the norm of the whole batch"
            )
        check_loss(loss)
        metrics, callbacks = read_metrics(metrics), list(callbacks)
        check_callbacks(callbacks, Callback, "hocket.train.Callback")
        check_count("epochs", epochs, 0)
        if max_steps is not None:
            check_count("max_steps", max_steps, 0)
        if weigh is not None and not callable(weigh):
            raise InvalidType(f"weigh must be a function of a target, not {weigh!r}")
        if max_gradient_norm is not None and not max_gradient_norm > 0:
            raise InvalidArgument(f"max_gradient_norm must be more than 0, or None, not {max_gradient_norm!r}")
        check_model(model)
        check_content({**dict(model.named_parameters()), **dict(model.named_buffers())})
        optimizers = read_optimizers(optimizer, model)
        ends: list[Callable[[], None]] = []
        scaling = None if scaler is None else LossScaling(scaler)
        if scaling is not None:
            callbacks.append(scaling)
            loss = scaling.scaled(loss)

        if choice.updates and len(optimizers) > 1:
            raise InvalidArgument(f"engine {engine!r} takes one optimizer, not {len(optimizers)}")

        def update_for(executor: PipelineExecutor) -> Update:
            if choice.updates:
                update = EngineUpdate(executor, choice, optimizers[0])
                ends.append(update.engine.close)
                return update
            stages = [executor.split.stages[number] for number in executor.trained_stages()]
            return update_of(optimizers, [each for stage in stages for each in stage.parameters().values()])

        def make_trainer(executor: PipelineExecutor) -> Trainer:
            trainer = Trainer(
                executor,
                update_for(executor),
                metrics=metrics,
                weigh=weigh,
                loss_is_mean=loss_is_mean,
                max_gradient_norm=max_gradient_norm,
                scaling=scaling,
                callbacks=callbacks,
            )
            if resume is not None:
                trainer.load(resume)
            return trainer

        def finish(trainer: Trainer, history: History) -> None:
            for end in ends:
                end()
            trainer.collect()

        request = TrainingRequest(
            SetupRequest(
                batch_size,
                strategy,
                num_partitions,
                num_replicas,
                schedule,
                schedule_options,
                num_micro_batches,
                recompute,
                layers_per_partition,
                balance,
                limit_nbytes,
            ),
            loss,
            make_trainer,
            finish=finish,
            epochs=epochs,
            max_steps=max_steps,
            exact=exact,
            seed=seed,
            timeout_s=timeout,
            engine=choice,
            messages=messages,
            picture=None if picture is None else Path(picture),
            shows=show_progress,
        )
        request.check_alike(
            comm,
            metrics=sorted(metrics),
            callbacks=[type(each).__name__ for each in callbacks],
            optimizer=[type(each).__name__ for each in optimizers],
            learning_rates=[float(group.get("lr", 0)) for each in optimizers for group in each.param_groups],
            max_gradient_norm=max_gradient_norm,
            loss_is_mean=loss_is_mean,
            resumes=resume is not None,
        )
        source, validation = sources_of(
            data, validation_data, comm, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        graph = graph_of_example(model, lambda: first_example(source))
        return train_graph(graph, TrainingData(source, validation, source), request, comm)
