"""The variables that a Keras optimizer has for each trained variable, and what its steps do without gradients."""

from __future__ import annotations

from typing import Any

import keras


def slots_of(optimizer: Any) -> dict[str, list[Any]]:
    """Return the optimizer's lists of variables that have one item, or None, for each trainable variable, by attribute.

    Examples:
        >>> import keras
        >>> optimizer = keras.optimizers.SGD(momentum=0.9)
        >>> optimizer.build([keras.Variable([1.0, 2.0], name="weight")])
        >>> {name: [each.shape for each in slots] for name, slots in slots_of(optimizer).items()}
        {'momentums': [(2,)]}
    """
    return {
        name: value
        for name, value in vars(optimizer).items()
        if isinstance(value, list)
        and name not in ("_trainable_variables", "_variables")
        and len(value) == len(optimizer._trainable_variables)
        and all(each is None or isinstance(each, keras.Variable) for each in value)
    }


def step_without_gradients(optimizer: Any) -> None:
    """Do the part of an optimizer's step that needs no gradients: count it, clear accumulated gradients when they are
    due, and update moving averages."""
    if _updates_now(optimizer) and optimizer.gradient_accumulation_steps:
        optimizer._backend_reset_gradient_accumulators()
    if optimizer.use_ema:
        variables = optimizer._trainable_variables
        optimizer._update_model_variables_moving_average(variables)
        every = optimizer.ema_overwrite_frequency
        if every and (int(optimizer.iterations) + 1) % every == 0:
            optimizer._overwrite_model_variables_with_average_value(variables)
    count_step(optimizer)


def count_step(optimizer: Any) -> None:
    """Count a step, for schedules of the learning rate and for Nadam."""
    if isinstance(optimizer, keras.optimizers.Nadam) and _updates_now(optimizer):
        product = optimizer._u_product
        step = keras.ops.cast(optimizer.iterations + 1, product.dtype)
        decay, beta_1 = (keras.ops.cast(each, product.dtype) for each in (0.96, optimizer.beta_1))
        product.assign(product.value * (beta_1 * (1.0 - 0.5 * keras.ops.power(decay, step))))
    optimizer._iterations.assign_add(1)


def _updates_now(optimizer: Any) -> bool:
    """Return whether the present step changes variables: the last one of those whose gradients are accumulated."""
    every = optimizer.gradient_accumulation_steps
    return not every or (int(optimizer._iterations.value) + 1) % every == 0
