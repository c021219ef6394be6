"""What can be known of a training as soon as its first batch is there."""

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

_TIGHT, _LOOSE = 1e-4, 0.02  # how far two sums may be apart by rounding; of few bits


def checker_of(model: keras.Model, weigh: Callable[[Any, Any], float] | None) -> Callable[[Trainer, Batch], None]:
    """Return a check for `hocket.train.Trainer`, which raises on every rank.

    Raises there:
        InvalidArgument: the data lack the target of an output.
        InvalidModel: the loss of the batch is not what those of its micro-batches make; only losses and layers of a
            user's own, and counts that he gives, have to be tried.
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
        InvalidModel: one is None, as Keras allows for optional inputs; the message says which.
    """
    inputs = x if isinstance(x, Mapping) else dict(enumerate(x if isinstance(x, (tuple, list)) else [x]))
    absent = [name for name, value in inputs.items() if value is None]
    if absent:
        raise InvalidModel(f"input {absent[0]!r} is None, and stages need every input: give a model without it")


def check_targets(model: keras.Model, y: Any) -> None:
    """Check that `y` has a target for every output with a loss.

    Raises:
        InvalidArgument: `y` lacks the target of an output; the message names the output.
    """
    wanted = _outputs_with_loss(model)
    if y is None:
        raise InvalidArgument(f"the loss of output {wanted[0]!r} needs y, and the data have none")
    num_outputs = len(model.outputs)
    if num_outputs == 1:
        return
    if isinstance(y, Mapping):
        absent = [name for name in wanted if name not in y]
        if absent:
            raise InvalidArgument(f"output {absent[0]!r} has a loss and no target: y has {', '.join(map(repr, y))}")
        return
    count = len(keras.tree.flatten(y))
    if count not in (num_outputs, len(wanted)):
        raise InvalidArgument(
            f"y has {count} arrays, and {len(wanted)} outputs have a loss ({', '.join(wanted)}): give one array each"
        )


def _outputs_with_loss(model: keras.Model) -> list[str]:
    """Names of outputs: the keys of a model that returns a dictionary, otherwise Keras' own."""
    structure = getattr(model, "_functional", model)._outputs_struct
    names = list(structure) if isinstance(structure, Mapping) else list(model._compile_loss.output_names or ["output"])
    loss = model._compile_loss._user_loss
    if isinstance(loss, Mapping):
        return [name for name, each in loss.items() if each is not None]
    if isinstance(loss, (list, tuple)):
        return [name for name, each in zip(names, loss, strict=False) if each is not None]
    return names


def _check_loss(model: keras.Model, trainer: Trainer, batch: Batch) -> None:
    """Compute the loss of a batch in parts and whole, without training on it: on one rank, of what the model gives, and
    of that with some samples made smaller, as the first losses of a model may all be alike."""
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
        except Exception as error:  # whatever the loss of a user raises
            problem = as_picklable(error)
    problem = trainer.comm.broadcast_object(problem, root)
    if problem is not None:
        raise problem


def _compare(model: keras.Model, pieces: Sequence[Piece], weights: Sequence[float]) -> None:
    loss = loss_of(model)
    for factors in (None, torch.linspace(0.25, 1.0, len(pieces))):
        seen = pieces if factors is None else [_scaled(*pair) for pair in zip(pieces, factors, strict=True)]
        whole = joined(seen)
        found = float(loss(whole.output, whole.target))
        # Whose weight is 0 may have a loss that is no number.
        in_parts = sum(float(loss(*each)) * weight for each, weight in zip(seen, weights, strict=False) if weight)
        few_bits = any(each.dtype in (torch.float16, torch.bfloat16) for each in keras.tree.flatten(whole.output))
        tolerance = _LOOSE if few_bits else _TIGHT
        if abs(found - in_parts) > tolerance * max(abs(found), abs(in_parts)) + 1e-7:
            raise InvalidModel(
                f"the loss of the first batch is {found:.6g}"
                + (", with some samples made smaller," if factors is not None else "")
                + f" and what those of its {len(pieces)} micro-batches make is {in_parts:.6g}: it is no mean over "
                'samples. One micro-batch is always right: strategy="model", num_micro_batches=1; or give weigh=lambda '
                "y, sample_weight: number of items that it is a mean over"
            )


def _check_added_losses(model: keras.Model, trainer: Trainer, batch: Batch) -> None:
    """Compare what layers add to the loss of a batch in parts with what they add where rank 0 runs the whole."""
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
            f"what layers add to the loss of the first batch is {whole:.6g}, and {in_parts:.6g} in its "
            f"{executor.num_micro_batches} micro-batches: it is no mean over samples. One micro-batch is always right: "
            'strategy="model", num_micro_batches=1'
        )


def _scaled(piece: Piece, factor: torch.Tensor) -> Piece:
    def scale(leaf: Any) -> Any:
        found = (leaf * factor).to(leaf.dtype)
        mask = backend.get_keras_mask(leaf)
        if mask is not None:
            backend.set_keras_mask(found, mask)
        return found

    return Piece(keras.tree.map_structure(scale, piece.output), piece.target)


def _is_known(loss: Any) -> bool:
    """Whether a loss is one of Keras' own, whose reduction says how micro-batches are weighted."""
    return isinstance(loss, str) or (is_of_keras(loss) and is_of_keras(getattr(loss, "fn", loss)))
