"""Checks of a training that need its first batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import torch
from keras.src import backend

from hocket.errors import InvalidArgument, InvalidModel
from hocket.keras.losses import loss_of, losses_of
from hocket.keras.parts import is_of_keras
from hocket.keras.whole_batch import Piece, gathered, joined, pieces_of
from hocket.train import Batch, Trainer
from hocket.train.on_rank_0 import as_picklable, on_rank_0

_TIGHT, _LOOSE = 1e-4, 0.02  # relative difference of two sums by rounding; the second for 16-bit types


def checker_of(model: keras.Model, weigh: Callable[[Any, Any], float] | None) -> Callable[[Trainer, Batch], None]:
    """Return a check for `hocket.train.Trainer`, which raises on every rank.

    The check raises InvalidArgument if the data lack the target of an output, and InvalidModel if the loss of the batch
    is not the weighted sum of its micro-batches' losses. The second check runs only with losses or layers of the user's
    own, or with `weigh`.
    """

    def check(trainer: Trainer, batch: Batch) -> None:
        check_inputs(batch.x)
        is_whole = trainer.executor.num_micro_batches == 1
        if model._compile_loss is not None:
            check_targets(model, batch.y[0] if batch.y else None)
            is_known = weigh is None and all(map(_is_known, losses_of(model)))
            if not (is_whole or is_known):
                _check_loss(model, trainer, batch)
        layers = model._flatten_layers(include_self=False)
        if not is_whole and not all(map(is_of_keras, layers)):
            _check_added_losses(model, trainer, batch)

    return check


def check_inputs(x: Any) -> None:
    """Check that every input of the model is given.

    Raises:
        InvalidModel: an input is None, which Keras allows for optional inputs; the message names it.
    """
    inputs = x if isinstance(x, Mapping) else dict(enumerate(x if isinstance(x, (tuple, list)) else [x]))
    absent = [name for name, value in inputs.items() if value is None]
    if absent:
        raise InvalidModel(f"input {absent[0]!r} is None, and stages need every input: use a model without this input")


def check_targets(model: keras.Model, y: Any) -> None:
    """Check that `y` has a target for every output with a loss.

    Raises:
        InvalidArgument: `y` lacks the target of an output; the message names the output.
    """
    expected = _outputs_with_loss(model)
    if y is None:
        raise InvalidArgument(f"the loss of output {expected[0]!r} needs y: the data must have it")
    num_outputs = len(model.outputs)
    if num_outputs == 1:
        return
    if isinstance(y, Mapping):
        absent = [name for name in expected if name not in y]
        if absent:
            raise InvalidArgument(
                f"y must have a target for output {absent[0]!r}, which has a loss; it has {', '.join(map(repr, y))}"
            )
        return
    count = len(keras.tree.flatten(y))
    if count not in (num_outputs, len(expected)):
        raise InvalidArgument(
            f"y must have {len(expected)} arrays, one for each output with a loss ({', '.join(expected)}), not {count}"
        )


def _outputs_with_loss(model: keras.Model) -> list[str]:
    """Return names of the outputs with a loss: keys, if the model returns a dictionary, else Keras' names."""
    structure = getattr(model, "_functional", model)._outputs_struct
    names = list(structure) if isinstance(structure, Mapping) else list(model._compile_loss.output_names or ["output"])
    loss = model._compile_loss._user_loss
    if isinstance(loss, Mapping):
        return [name for name, each in loss.items() if each is not None]
    if isinstance(loss, (list, tuple)):
        return [name for name, each in zip(names, loss, strict=False) if each is not None]
    return names


def _check_loss(model: keras.Model, trainer: Trainer, batch: Batch) -> None:
    """Compare the loss of a whole batch with the sum over its micro-batches, on one rank and without training: for the
    outputs of the model, and for scaled outputs, since the first losses of a model may all be equal."""
    executor = trainer.executor
    parts = trainer.cut(batch)
    result = executor.forward(parts.micro_batches, keeps_outputs=True)
    root = executor.holders(executor.split.num_stages - 1)[0]
    pieces = gathered(executor, pieces_of(executor, result.outputs, parts), root)
    problem: Exception | None = None
    if pieces is not None:
        try:
            with torch.no_grad():
                _compare(model, [pieces[number] for number in sorted(pieces)], parts.weights)
                for each in model._compile_loss.metrics:
                    each.reset_state()
        except Exception as error:  # a user's loss may raise anything
            problem = as_picklable(error)
    problem = trainer.comm.broadcast_object(problem, root)
    if problem is not None:
        raise problem


def _compare(model: keras.Model, pieces: Sequence[Piece], weights: Sequence[float]) -> None:
    loss = loss_of(model)
    for factors in (None, torch.linspace(0.25, 1.0, len(pieces))):
        compared = pieces if factors is None else [_scaled(*pair) for pair in zip(pieces, factors, strict=True)]
        whole = joined(compared)
        expected = float(loss(whole.output, whole.target))
        # With a weight of 0 the loss may be nan.
        in_parts = sum(float(loss(*each)) * weight for each, weight in zip(compared, weights, strict=False) if weight)
        few_bits = any(each.dtype in (torch.float16, torch.bfloat16) for each in keras.tree.flatten(whole.output))
        tolerance = _LOOSE if few_bits else _TIGHT
        if abs(expected - in_parts) > tolerance * max(abs(expected), abs(in_parts)) + 1e-7:
            raise InvalidModel(
                f"the loss of the first batch is {expected:.6g}"
                + (", with scaled outputs," if factors is not None else "")
                + f" and the weighted sum over its {len(pieces)} micro-batches is {in_parts:.6g}: the loss is not a "
                'mean over samples. Set strategy="model", num_micro_batches=1, or pass weigh=lambda y, sample_weight: '
                "number of items that the loss is a mean over"
            )


def _check_added_losses(model: keras.Model, trainer: Trainer, batch: Batch) -> None:
    """Compare the sum that layers add to the loss over micro-batches with the value for the whole batch on rank 0."""
    executor = trainer.executor
    parts = trainer.cut(batch)
    result = executor.forward(parts.micro_batches, keeps_outputs=False, with_losses=True)
    own = [
        float(loss) * parts.shares[executor.first_micro_batch + number]
        for (_, number), loss in result.extra_losses.items()
    ]
    of_ranks = trainer.comm.all_gather_object(own)
    if not any(of_ranks):
        return
    in_parts = sum(map(sum, of_ranks))

    def compute() -> float:
        with torch.no_grad():
            model(list(batch.x) if isinstance(batch.x, tuple) else batch.x, training=False)
            return float(sum(keras.ops.sum(each) for each in model.losses))

    whole = on_rank_0(trainer.comm, compute)
    if abs(whole - in_parts) > _TIGHT * max(abs(whole), abs(in_parts)) + 1e-7:
        raise InvalidModel(
            f"layers add {whole:.6g} to the loss of the first batch, and {in_parts:.6g} in its "
            f"{executor.num_micro_batches} micro-batches: the term is not a mean over samples. Set "
            'strategy="model", num_micro_batches=1'
        )


def _scaled(piece: Piece, factor: torch.Tensor) -> Piece:
    def scale(leaf: Any) -> Any:
        scaled = (leaf * factor).to(leaf.dtype)
        mask = backend.get_keras_mask(leaf)
        if mask is not None:
            backend.set_keras_mask(scaled, mask)
        return scaled

    return Piece(keras.tree.map_structure(scale, piece.output), piece.target)


def _is_known(loss: Any) -> bool:
    """Return whether a loss is one of Keras' own, whose reduction determines the weights of micro-batches."""
    return isinstance(loss, str) or (is_of_keras(loss) and is_of_keras(getattr(loss, "fn", loss)))
