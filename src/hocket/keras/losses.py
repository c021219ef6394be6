"""The loss that a model was compiled with, and the weights of its micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras.src import backend

from hocket.errors import InvalidModel

_MEANS = ("sum_over_batch_size", "mean")


class Weighing(NamedTuple):
    """The weighting of a loss, as arguments of `hocket.train.Trainer`.

    Args:
        weigh: returns, for a target, the number of items that the mean is taken over; None: the number of samples.
        loss_is_mean: whether the loss is a mean, or a sum.
    """

    weigh: Callable[[Any], float] | None
    loss_is_mean: bool


def loss_of(model: keras.Model) -> Callable[[Any, Any], Any]:
    """Return the loss as a function of the model's output and (), (y,) or (y, sample_weight). For a model that was
    compiled without a loss, and whose layers add losses, it returns 0."""

    def loss(output: Any, target: Any) -> Any:
        if model._compile_loss is None:
            return 0.0 * keras.tree.flatten(output)[0].nan_to_num(0.0, 0.0, 0.0).sum()
        y, *weight = target or (None,)
        return model._compile_loss(y, output, *weight)

    return loss


def weighing_of(model: keras.Model, weigh: Callable[[Any, Any], float] | None, num_micro_batches: int) -> Weighing:
    """Return the weights for which the losses of micro-batches sum to the loss of the whole batch.

    Args:
        model: a compiled model.
        weigh: returns, for y and sample_weight (or None), the number of items that the mean is taken over; for losses
            of which only the user knows it.
        num_micro_batches: of a batch, over all replicas. With one micro-batch no weights are needed.

    Raises:
        InvalidModel: no weights give the loss of the batch, or the user must pass `weigh`.
    """
    if num_micro_batches == 1 or model._compile_loss is None:
        return Weighing(None, True)
    losses = losses_of(model)
    for each in losses:
        _check_is_of_samples(each)
    reductions = {_reduction_of(each) for each in losses}
    if reductions == {"sum"}:
        return Weighing(None, False)
    if reductions <= {*_MEANS} or reductions == {"mean_with_sample_weight"}:
        if weigh is not None:
            return Weighing(lambda target: weigh(target[0], target[1] if len(target) > 1 else None), True)
        ignoring = [each for each in losses if getattr(each, "ignore_class", None) is not None]
        if ignoring:
            raise InvalidModel(
                f"loss {ignoring[0].name!r} is a mean over the items that are not of class {ignoring[0].ignore_class}, "
                "whose number in a micro-batch is unknown: pass weigh=lambda y, sample_weight: number of items"
            )
        masked = [each.name for each in model.outputs if backend.get_keras_mask(each) is not None]
        if masked:
            raise InvalidModel(
                f"the loss is a mean over the items that the mask of output {masked[0]!r} keeps, whose number in a "
                "micro-batch is unknown before the model runs: pass weigh=lambda y, sample_weight: number of items"
            )
        return Weighing(_sum_of_weights if "mean_with_sample_weight" in reductions else None, True)
    words = ", ".join(sorted(map(str, reductions)))
    raise InvalidModel(
        f"the losses of the model have reductions {words}; with several micro-batches all must be means "
        '("sum_over_batch_size"), all sums ("sum"), or all "mean_with_sample_weight"'
    )


def losses_of(model: keras.Model) -> list[Any]:
    """Return the losses of the model's outputs, as they were passed to `model.compile`."""
    return [each for each in keras.tree.flatten(model._compile_loss._user_loss) if each is not None]


def _check_is_of_samples(loss: Any) -> None:
    if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):  # each loss with this name is one of samples
        return
    loss = keras.losses.get(loss)
    function, axis = getattr(loss, "fn", loss), getattr(loss, "axis", getattr(loss, "_fn_kwargs", {}).get("axis"))
    axes = (axis,) if isinstance(axis, int) else axis or ()
    if 0 in axes or (axis is None and function in (keras.losses.dice, keras.losses.tversky)):
        raise InvalidModel(
            f"loss {getattr(function, '__name__', loss)!r} with axis={axis} is one number for a batch, which cannot be "
            "computed from micro-batches: use axes within a sample, such as axis=(1, 2, 3)"
        )
    if function is keras.losses.circle:
        raise InvalidModel(
            "loss 'circle' compares all samples of a batch, which micro-batches split: use another loss, or "
            "num_micro_batches=1"
        )


def _reduction_of(loss: Any) -> str | None:
    return loss.reduction if isinstance(loss, keras.losses.Loss) else _MEANS[0]


def _sum_of_weights(target: Any) -> float:
    y, *weights = target
    if not weights or weights[0] is None:
        return float(len(keras.tree.flatten(y)[0]))
    if keras.tree.is_nested(weights[0]):
        raise InvalidModel(
            'reduction "mean_with_sample_weight" with sample weights for each output: pass weigh=, or one weight for '
            "each sample"
        )
    return float(weights[0].sum())
