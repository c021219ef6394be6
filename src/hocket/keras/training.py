"""Train an unchanged Keras model on all ranks of a job."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from hocket.collectives import Compressor
from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidType
from hocket.keras.callbacks import KerasCallbacks
from hocket.keras.compiled import check_compiled, check_what_is_written
from hocket.keras.counters import Counters
from hocket.keras.engine_update import KerasEngineUpdate
from hocket.keras.feeding import Reading, batch_size_of, data_of, feed, portions_of, split_off, with_class_weight
from hocket.keras.first_batch import checker_of
from hocket.keras.graph import graph_of_keras
from hocket.keras.losses import loss_of, weighing_of
from hocket.keras.meter import KerasMeter
from hocket.keras.served import check_can_be_served
from hocket.keras.stage import KerasStage
from hocket.keras.update import KerasUpdate
from hocket.pipeline.schedule import PipelineSchedule
from hocket.session import init
from hocket.train import (
    History,
    PipelineExecutor,
    SetupRequest,
    Trainer,
    TrainingData,
    TrainingRequest,
    TrainingSetup,
    train_graph,
)
from hocket.train.checks import check_count, check_seed
from hocket.train.engines.registry import DEFAULT, EngineChoice
from hocket.train.loop.callback import check_callbacks
from hocket.train.run.lossless import check_messages


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    strategy: str = "model",
    num_partitions: int | None = None,
    num_replicas: int | None = None,
    schedule: str | PipelineSchedule | None = None,
    schedule_options: Mapping[str, Any] | None = None,
    num_micro_batches: int | None = None,
    layers_per_partition: Sequence[int] | None = None,
    balance: str | Sequence[float] = "params",
    limit_nbytes: float | None = None,
    batch_size: int | None = None,
    epochs: int = 1,
    max_steps: int | None = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    validation_batch_size: int | None = None,
    validation_steps: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None = (),
    weigh: Callable[[Any, Any], float] | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    engine: str = DEFAULT,
    engine_options: Mapping[str, Any] | None = None,
    gradients: Compressor | str | None = None,
    messages: str | None = None,
    exact: bool = False,
    recompute: bool = False,
    seed: int = 0,
    comm: Communicator | None = None,
    timeout: float | None = None,
    picture: str | Path | None = None,
    verbose: bool | int | str = "auto",
) -> keras.callbacks.History:
    """Train a compiled model as `model.fit` does, split over ranks.

    All ranks of a job call it. At the end every rank has the whole trained model.

    The torch calls of each operation are captured and checked, bit for bit, on other samples. Then stages make these
    calls without Keras, whose overhead is longer than a small kernel; not if the model was compiled with
    ``run_eagerly=True``.

    Args:
        model: a compiled Functional or Sequential model on the torch backend; equal models on all ranks. All ranks
            begin with the weights of rank 0.
        x: inputs of the model: an array, a list of arrays, or a dictionary by name; with `y`, or as (x, y) or
            (x, y, sample_weight). Or a `keras.utils.PyDataset`, a generator, a `torch.utils.data.DataLoader`, a tf.data
            or grain dataset, which rank 0 reads by Keras' own iterator; or other data of `hocket.train.source_of`.
        y, sample_weight, class_weight: see `model.fit`.
        strategy: "data", "model", "hybrid" or "auto": see `hocket.train.fit`.
        num_partitions, num_replicas: see `hocket.train.fit`; None: derived from the strategy and the ranks.
        schedule, schedule_options, num_micro_batches: see `hocket.train.fit`.
        layers_per_partition: number of operations of each stage; None: given by `balance`.
        balance, limit_nbytes: see `hocket.train.fit`.
        batch_size: samples of a step, over all replicas; None: 32, or with arrays and `steps_per_epoch`, the samples
            divided by the steps.
        epochs, initial_epoch, steps_per_epoch: see `model.fit`.
        max_steps: number of steps of this call after which it ends, in any epoch; None: no limit.
        validation_data: (x, y), (x, y, sample_weight), or other data as for `x`; evaluated after every epoch.
        validation_split, validation_batch_size, validation_steps, validation_freq: see `model.fit`.
        callbacks: Keras callbacks; they run on rank 0, with the whole model: see `KerasCallbacks`.
        weigh: returns, for y and sample_weight (or None), the number of items that the mean in the loss is taken over,
            if these are not samples or their weights: for masked outputs.
        shuffle: take the samples in a new order in every epoch.
        drop_last: leave out the last batch of an epoch if it is smaller.
        engine, engine_options, gradients, messages, exact, recompute, seed, timeout, picture: see `hocket.train.fit`.
            Servers of an engine that updates have copies of the model's optimizer; callbacks may then change settings,
            such as the learning rate, but write to trained variables only before the first step and after the last one.
        comm: a communicator of all ranks; None: join the job, and leave it at the end.
        verbose: show progress on rank 0; 0 or False: do not.

    Returns:
        The history that `model.fit` returns, equal on all ranks. It also has `plan`, the set-up in words,
        `samples_per_s` of every epoch, `messages` (see `hocket.train.History`), and `left_to_keras`: the operations
        that Keras always ran, and why.

    Raises:
        InvalidModel: the model has no graph, is not compiled, or has its own training step; or its loss cannot be
            computed from the losses of micro-batches, which is checked with the first batch. Raised on every rank,
            before anything is changed.
        InvalidArgument: another argument cannot be used, or servers cannot have copies of the optimizer; raised on
            every rank, before anything is changed.
        CommTimeout, PeerFailure: a rank hangs, or has died; the message names the rank, and what was waited for.

    Examples:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x, y = np.ones((16, 2), np.float32), np.ones((16, 1), np.float32)
        >>> history = hk.keras.fit(model, x, y, batch_size=8, epochs=3, comm=comm, verbose=0)
        >>> history.plan
        '2 partitions x 1 replicas, 1f1b, 8 micro-batches, stages of 1, 1 layers'
        >>> len(history.history["loss"]), model.predict(x, verbose=0).shape  # every rank has the whole model
        (3, (16, 1))
    """
    check_compiled(model)
    if weigh is not None and not callable(weigh):
        raise InvalidType(f"weigh must be a function of y and sample_weight, not {weigh!r}")
    callbacks = keras.tree.flatten(() if callbacks is None else callbacks)
    check_callbacks(callbacks, keras.callbacks.Callback, "keras.callbacks.Callback")
    for name, value in (("epochs", epochs), ("initial_epoch", initial_epoch), ("max_steps", max_steps)):
        if value is not None:
            check_count(name, value, 0)
    for name, value in (
        ("steps_per_epoch", steps_per_epoch),
        ("validation_steps", validation_steps),
        ("validation_batch_size", validation_batch_size),
        ("batch_size", batch_size),
    ):
        if value is not None:
            check_count(name, value)
    check_seed(seed)
    choice = EngineChoice.of(engine, engine_options, gradients)
    check_messages(messages)
    choice.check(exact=exact)
    validates = _when(validation_freq)
    data = data_of(x, y, sample_weight)
    validation = None if validation_data is None else data_of(validation_data)
    if validation_split and validation is None:
        data, validation = split_off(data, validation_split)
    data = with_class_weight(data, class_weight)
    validation_batch_size = batch_size_of(validation, validation_batch_size or batch_size, validation_steps)
    batch_size = batch_size_of(data, batch_size, steps_per_epoch)
    _build_for(model, x)
    graph = graph_of_keras(model)
    if choice.updates:
        check_can_be_served(model.optimizer, model.trainable_variables)
    if not model.trainable_variables:  # in Keras, too, this is not an error
        warnings.warn(f"model {model.name!r} has no trainable weights: nothing is trained", stacklevel=2)
    reading = Reading(batch_size, shuffle, seed, drop_last, steps_per_epoch, class_weight)
    validation_reading = Reading(validation_batch_size, steps=validation_steps, begins_anew=True)
    left_to_keras: dict[str, str] = {}
    with ExitStack() as stack:
        if comm is None:
            comm = stack.enter_context(init())

        counters: list[Counters] = []

        def check_setup(setup: TrainingSetup) -> None:
            check_what_is_written(model, setup.schedule.num_micro_batches)
            weighing_of(model, weigh, setup.arrangement.num_replicas * setup.schedule.num_micro_batches)

        def update_for(executor: PipelineExecutor) -> KerasUpdate:
            if not choice.updates or not model.trainable_variables:
                return KerasUpdate(model.optimizer, model.trainable_variables, executor)
            return KerasEngineUpdate(model.optimizer, model.trainable_variables, executor, choice)

        def make_trainer(executor: PipelineExecutor) -> Trainer:
            counters.append(Counters(model))  # after the executor has sent rank 0's variables to all ranks
            update = update_for(executor)
            meter = KerasMeter(model, executor)
            parameters = {"epochs": epochs, "verbose": 0, "steps": steps_per_epoch or source.num_batches}
            trainer = Trainer(
                executor,
                update,
                **weighing_of(model, weigh, executor.num_micro_batches)._asdict(),
                meter=meter,
                counts_samples=True,
                callbacks=[KerasCallbacks(callbacks, model, update, meter, parameters)],
                check_first=checker_of(model, weigh),
            )
            trainer.epoch = initial_epoch
            executor.num_steps = update.num_steps
            return trainer

        def finish(trainer: Trainer, history: History) -> None:
            counters[0].set_after(trainer.executor, len(history.batch_losses))
            left_to_keras.update(_left_to_keras(trainer.executor))

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
            loss_of(model),
            make_trainer,
            finish,
            check_setup,
            epochs=epochs,
            max_steps=max_steps,
            counts_from_here=True,
            validates=validates,
            logs_speed=False,
            exact=exact,
            seed=seed,
            timeout_s=timeout,
            engine=choice,
            messages=messages,
            picture=None if picture is None else Path(picture),
            shows=verbose not in (0, False),
        )
        request.check_alike(
            comm,
            initial_epoch=initial_epoch,
            optimizer=type(model.optimizer).__name__,
            callbacks=[type(each).__name__ for each in callbacks],
            shuffle=shuffle,
            drop_last=drop_last,
            steps_per_epoch=steps_per_epoch,
            validates=(validation is not None, validation_steps, validation_batch_size, repr(validation_freq)),
        )
        source = feed(data, comm, reading)
        validation_source = None
        if validation is not None:
            validation_source = portions_of(feed(validation, comm, validation_reading), validation_reading)
        training_data = TrainingData(portions_of(source, reading), validation_source, source)
        trained = train_graph(graph, training_data, request, comm)
    history = keras.callbacks.History()
    history.set_model(model)
    history.history, history.epoch, history.plan = trained.history, trained.epoch, trained.plan
    history.samples_per_s, history.left_to_keras = trained.samples_per_s, left_to_keras
    history.messages = trained.messages
    model.history = history
    return history


def _build_for(model: keras.Model, x: Any) -> None:
    """Build a Sequential model for the shape of `x`, if that is an array; Keras builds it at the first batch.

    Raises:
        InvalidArgument: a layer does not support the shape.
    """
    first = x[0] if isinstance(x, (tuple, list)) and x else x
    shape = getattr(first, "shape", None)
    if isinstance(model, keras.Sequential) and not model.built and model.layers and shape is not None and len(shape):
        try:
            model.build((None, *shape[1:]))
        except ValueError as error:
            raise InvalidArgument(
                f"model {model.name!r} cannot be built for x of shape {tuple(shape)}: {error}"
            ) from None


def _left_to_keras(executor: PipelineExecutor) -> dict[str, str]:
    """Return the operations of all ranks that Keras always ran, and why."""
    stages = [executor.split.stages[number] for number in executor.trained_stages()]
    here = {name: why for each in stages if isinstance(each, KerasStage) for name, why in each.left_to_keras().items()}
    reasons: dict[str, str] = {}
    for of_rank in executor.comm.all_gather_object(here):
        reasons |= of_rank
    return reasons


def _when(validation_freq: int | Sequence[int]) -> Callable[[int], bool]:
    """Return a function (index of an epoch) -> whether a validation follows it."""
    if isinstance(validation_freq, int) and validation_freq >= 1:
        return lambda epoch: (epoch + 1) % validation_freq == 0
    if isinstance(validation_freq, (list, tuple, set, frozenset)):
        chosen = set(validation_freq)
        return lambda epoch: epoch + 1 in chosen
    raise InvalidArgument(
        f"validation_freq must be an int of 1 or more, or a list of epochs counted from 1, not {validation_freq!r}"
    )
