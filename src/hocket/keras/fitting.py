"""Train an unchanged Keras model on all ranks of a job."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import torch

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidModel, InvalidType
from hocket.keras.callbacks import KerasCallbacks
from hocket.keras.graph import graph_of_keras
from hocket.keras.losses import loss_of, weighing_of
from hocket.keras.meter import KerasMeter
from hocket.keras.stage import KerasStage
from hocket.keras.update import KerasUpdate
from hocket.measure.pictures import check_picture_path
from hocket.pipeline.schedule import PipelineSchedule
from hocket.session import init
from hocket.train import (
    PipelineExecutor,
    Trainer,
    Wanted,
    compare_with_simulation,
    first_inputs,
    run_epochs,
    settle,
    sources_of,
)
from hocket.train.checks import check_alike, check_callbacks, check_count


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
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None = (),
    weigh: Callable[[Any, Any], float] | None = None,
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

    What Keras calls of torch for an operation is captured, compared on other samples bit for bit, and from then on
    called without Keras, which takes longer than a small kernel does; unless the model was compiled with
    ``run_eagerly=True``.

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
        max_steps: of this call, after which it ends, whatever the epoch.
        validation_data: as `data`; evaluated after every epoch.
        callbacks: Keras callbacks; run on rank 0.
        weigh: of y and sample_weight (or None), how many items the mean in the loss is over, where that is not samples
            or their weights: where outputs are masked.
        shuffle, drop_last: of the samples of an epoch.
        exact, recompute, seed, timeout, picture: as of `hocket.train.fit`.
        comm: of all ranks; None: the job's, which is joined and left.
        verbose: show progress, on rank 0.

    Returns:
        What `model.fit` returns, the same on every rank; also `plan`, what the ranks did, in words, and
        `left_to_keras`, which operations Keras ran every time, and why.

    Raises:
        InvalidModel: the model has no graph, is not compiled, or has a training step of its own, or a loss that does
            not follow from those of micro-batches.
        InvalidArgument: something else cannot work; both are raised on every rank, before anything is sent.
        CommTimeout, PeerFailure: a rank hangs, or has died; names it and what was waited for.
    """
    graph = graph_of_keras(model)
    check_compiled(model)
    if weigh is not None and not callable(weigh):
        raise InvalidType(f"weigh is a function of y and sample_weight, not {weigh!r}")
    weighing = weighing_of(model, weigh)
    callbacks = keras.tree.flatten(() if callbacks is None else callbacks)
    check_callbacks(callbacks, keras.callbacks.Callback)
    for name, value in (("epochs", epochs), ("initial_epoch", initial_epoch), ("max_steps", max_steps)):
        if value is not None:
            check_count(name, value, 0)
    if not model.trainable_variables:  # which is no error in Keras either
        warnings.warn(f"model {model.name!r} has no trainable weights: nothing is trained", stacklevel=2)
    with ExitStack() as stack:
        if comm is None:
            comm = stack.enter_context(init())
        check_alike(
            comm,
            epochs=epochs,
            initial_epoch=initial_epoch,
            max_steps=max_steps,
            optimizer=type(model.optimizer).__name__,
            callbacks=len(callbacks),
            exact=exact,
            draws=picture is not None,
        )
        source, validation = sources_of(
            _with_weights(data),
            None if validation_data is None else _with_weights(validation_data),
            comm,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
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
        check_what_is_written(model, plan.schedule.num_micro_batches)
        executor = stack.enter_context(
            PipelineExecutor(plan.schedule, plan.split, comm, loss_of(model), exact=exact, seed=seed, timeout=timeout)
        )
        update = KerasUpdate(model.optimizer, model.trainable_variables, executor)
        parameters = {"epochs": epochs, "verbose": 0, "steps": source.num_batches}
        trainer = Trainer(
            executor,
            update,
            **weighing._asdict(),
            meter=KerasMeter(model, executor),
            counts_samples=True,
            callbacks=[KerasCallbacks(callbacks, model, update, parameters)],
        )
        trainer.epoch = initial_epoch
        executor.num_steps = update.num_steps
        shows = verbose and comm.rank == 0
        last_step = None if max_steps is None else update.num_steps + max_steps
        found = run_epochs(trainer, source, epochs, validation, shows=shows, max_steps=last_step)
        left_to_keras = _left_to_keras(executor)
        if picture is not None and found.batch_losses:
            inputs = first_inputs(source, plan.split.batch_inputs, executor.num_micro_batches)
            compare_with_simulation(executor, inputs, picture)
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch, history.plan = found.history, found.epoch, str(plan)
    history.left_to_keras = left_to_keras
    model.history = history
    return history


def check_compiled(model: keras.Model) -> None:
    """Check that a model can be trained without its own training step.

    Raises:
        InvalidModel: it cannot: says why.
    """
    if not model.compiled:
        raise InvalidModel(f"model {model.name!r} is not compiled: call model.compile(optimizer, loss) first")
    if model._compile_loss is None:
        raise InvalidModel(f"model {model.name!r} is compiled without a loss: call model.compile(optimizer, loss)")
    for name in ("train_step", "compute_loss", "compute_metrics"):
        plain = getattr(keras.Sequential if isinstance(model, keras.Sequential) else keras.Model, name)
        if getattr(type(model), name) is not plain:
            raise InvalidModel(f"model {model.name!r} has a {name} of its own, which a pipeline does not call")


def check_what_is_written(model: keras.Model, num_micro_batches: int) -> None:
    """Check that no forward pass writes to a variable that another one has been computed with.

    Raises:
        InvalidModel: one does: says what would do.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.SpectralNormalization) and num_micro_batches > 1:
            raise InvalidModel(
                f"layer {layer.name!r} writes to its kernel in every forward pass, and there are {num_micro_batches} "
                "before the optimizer's step: num_micro_batches=1"
            )


def _left_to_keras(executor: PipelineExecutor) -> dict[str, str]:
    """Which operations of all ranks Keras ran every time, and why."""
    stages = [executor.split.stages[number] for number in executor.trained_stages()]
    here = {name: why for each in stages if isinstance(each, KerasStage) for name, why in each.left_to_keras().items()}
    found: dict[str, str] = {}
    for of_rank in executor.comm.all_gather_object(here):
        found |= of_rank
    return found


def _with_weights(data: Any) -> Any:
    """Pairs (x, (y,)) or (x, (y, sample_weight))."""
    if isinstance(data, list) and data and all(isinstance(each, tuple) for each in data):
        return [_with_weights(each) for each in data]
    if isinstance(data, (tuple, list)):
        if len(data) not in (2, 3):
            raise InvalidArgument(f"data are (x, y) or (x, y, sample_weight), not {len(data)} things")
        x, *targets = data
        return x, tuple(each for each in targets if each is not None)
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        return _WeightedDataset(data)
    return _WeightedStream(data) if isinstance(data, Iterable) else data


class _WeightedDataset(torch.utils.data.Dataset[Any]):
    """Samples as such pairs."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> Any:
        return _with_weights(self._data[number])


class _WeightedStream:
    """Batches of a stream as such pairs."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data

    def __iter__(self) -> Any:
        return (_with_weights(batch) for batch in self._data)
