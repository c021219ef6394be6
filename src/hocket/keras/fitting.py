"""Train an unchanged Keras model on all ranks of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidModel
from hocket.keras.callbacks import KerasCallbacks
from hocket.keras.graph import graph_of_keras
from hocket.keras.meter import KerasMeter
from hocket.keras.update import KerasUpdate
from hocket.measure.pictures import check_picture_path
from hocket.pipeline.schedule import PipelineSchedule
from hocket.session import init
from hocket.train import (
    Callback,
    PipelineExecutor,
    Trainer,
    Wanted,
    compare_with_simulation,
    first_inputs,
    run_epochs,
    settle,
    source_of,
)


def fit(
    model: keras.Model,
    data: Any,
    *,
    strategy: str = "model",
    num_partitions: int | None = None,
    num_replicas: int | None = None,
    schedule: str | PipelineSchedule | None = None,
    schedule_options: Mapping[str, Any] | None = None,
    num_micro_batches: int | None = None,
    layers_per_partition: Sequence[int] | None = None,
    balance: str | Sequence[float] = "params",
    limit_nbytes: float | None = None,
    batch_size: int = 32,
    epochs: int = 1,
    max_steps: int | None = None,
    initial_epoch: int = 0,
    validation_data: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    shuffle: bool = True,
    drop_last: bool = False,
    exact: bool = False,
    recompute: bool = False,
    seed: int = 0,
    comm: Communicator | None = None,
    timeout: float | None = None,
    picture: str | Path | None = None,
    verbose: bool = True,
) -> keras.callbacks.History:
    """Train a compiled model as `model.fit` does, split over ranks; called by all ranks of a job alike. Every rank has
    the whole trained model at the end.

    Args:
        model: Functional or Sequential, on the torch backend, compiled; the same on every rank, which all begin with
            the weights of rank 0.
        data: (x, y) or (x, y, sample_weight) of arrays; or what else `hocket.train.source_of` takes.
        strategy: "data", "model", "hybrid" or "auto", as of `hocket.train.fit`.
        num_partitions, num_replicas: how the ranks are used; what is not given follows from the strategy.
        schedule, schedule_options, num_micro_batches: of a pipeline, as of `hocket.train.fit`.
        layers_per_partition: how many operations each stage has; otherwise they are alike in `balance`.
        balance, limit_nbytes: as of `hocket.train.fit`.
        batch_size: samples of a step, over all replicas.
        epochs, initial_epoch: as of `model.fit`.
        max_steps: after which it ends, whatever the epoch.
        validation_data: as `data`; evaluated after every epoch.
        callbacks: Keras callbacks; run on rank 0.
        shuffle, drop_last: of the samples of an epoch.
        exact, recompute, seed, timeout, picture: as of `hocket.train.fit`.
        comm: of all ranks; None: the job's, which is joined and left.
        verbose: show progress, on rank 0.

    Returns:
        What `model.fit` returns, the same on every rank.

    Raises:
        InvalidModel: the model has no graph, is not compiled, or has a training step of its own.
        InvalidArgument: something else cannot work; both are raised on every rank, before anything is sent.
        CommTimeout, PeerFailure: a rank hangs, or has died; names it and what was waited for.
    """
    graph = graph_of_keras(model)
    check_compiled(model)
    with ExitStack() as stack:
        if comm is None:
            comm = stack.enter_context(init())
        source = source_of(
            _with_weights(data), comm, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        validation = None
        if validation_data is not None:
            validation = source_of(
                _with_weights(validation_data), comm, batch_size=batch_size, shuffle=False, seed=seed, drop_last=False
            )
        wanted = Wanted(
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
        )
        if picture is not None:
            check_picture_path(Path(picture))
        plan = settle(wanted, graph, source, comm, verbose and comm.rank == 0)

        def loss(output: Any, target: Any) -> Any:
            y, weight = target
            return model._compile_loss(y, output, weight)

        executor = stack.enter_context(
            PipelineExecutor(plan.schedule, plan.split, comm, loss, exact=exact, seed=seed, timeout=timeout)
        )
        update = KerasUpdate(model.optimizer, model.trainable_variables, executor)
        trainer = Trainer(executor, update, meter=KerasMeter(model._compile_metrics, executor))
        trainer.epoch = initial_epoch
        executor.num_steps = int(model.optimizer.iterations.value)
        parameters = {"epochs": epochs, "verbose": 0, "steps": source.num_batches}
        own: list[Callback] = [KerasCallbacks(callbacks, model, update, parameters)] if callbacks else []
        found = run_epochs(trainer, source, epochs, validation, own, show_progress=verbose, max_steps=max_steps)
        if picture is not None and found.batch_losses:
            inputs = first_inputs(source, plan.split.batch_inputs, executor.num_micro_batches)
            compare_with_simulation(executor, inputs, picture)
        if not callbacks:  # which have seen the whole model after every epoch, and may have changed it at the end
            trainer.collect()
            update.collect()
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch, history.plan = found.history, found.epoch, str(plan)
    model.history = history
    return history


def check_compiled(model: keras.Model) -> None:
    """Check that a model can be trained without its own training step.

    Raises:
        InvalidModel: it cannot: says why.
    """
    if not model.compiled:
        raise InvalidModel(f"model {model.name!r} is not compiled: call model.compile(optimizer, loss) first")
    for name in ("train_step", "compute_loss", "compute_metrics"):
        plain = getattr(keras.Sequential if isinstance(model, keras.Sequential) else keras.Model, name)
        if getattr(type(model), name) is not plain:
            raise InvalidModel(f"model {model.name!r} has a {name} of its own, which a pipeline does not call")


def _with_weights(data: Any) -> Any:
    """Pairs (x, (y, sample_weight))."""
    if isinstance(data, (tuple, list)):
        if len(data) not in (2, 3):
            raise InvalidArgument(f"data are (x, y) or (x, y, sample_weight), not {len(data)} things")
        return data[0], (data[1], data[2] if len(data) == 3 else None)
    return _Weighted(data)


class _Weighted:
    """Batches of a stream as such pairs."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __iter__(self) -> Any:
        return (_with_weights(batch) for batch in self._data)
