"""Servers' parts of Keras optimizers: every class and every argument against Keras alone, or refused by name."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import cloudpickle
import keras
import numpy as np
import pytest
import torch

from hocket.errors import InvalidArgument
from hocket.keras.served import KerasServedOptimizer
from hocket.keras.slots import count_step, slots_of
from hocket.train.engines.servers.refused import Refused
from hocket.train.engines.servers.updates import Updates

from ..naming import raises

PLAIN = keras.optimizers.Optimizer
CLASSES = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type) and issubclass(kind, PLAIN) and kind is not PLAIN
}
REFUSED = {"LossScaleOptimizer", "MultiOptimizer"}
SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
PARCELS = ([3, 2], [4, 1, 0], [5])
SHAPES = {
    "a/kernel": (4, 3),
    "a/bias": (3,),
    "embedding/table": (5, 2),
    "b/kernel": (3, 3),
    "b/bias": (3,),
    "off": (2,),
}
SHAPES_OF = list(SHAPES.values())

Arguments = Mapping[str, Any]

# Of every argument of the base class: values that work, and values that are refused.
BASE: dict[str, tuple[list[Arguments], list[Arguments]]] = {
    "learning_rate": ([{"learning_rate": each} for each in (0.05, SCHEDULE, lambda: 0.03)], []),
    "weight_decay": ([{"weight_decay": 0.1}], []),
    "clipnorm": ([{"clipnorm": 0.3}], []),
    "clipvalue": ([{"clipvalue": 0.1}], []),
    "global_clipnorm": ([], [{"global_clipnorm": 0.3}]),
    "use_ema": ([{"use_ema": True}], []),
    "ema_momentum": ([{"use_ema": True, "ema_momentum": 0.5}], []),
    "ema_overwrite_frequency": ([{"use_ema": True, "ema_overwrite_frequency": 2}], []),
    "loss_scale_factor": ([{"loss_scale_factor": 8.0}], []),
    "gradient_accumulation_steps": (
        [{"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 3, "use_ema": True}],
        [],
    ),
    "name": ([{"name": "other"}], []),
    "kwargs": ([], []),
}
# Arguments of single classes whose default value does not show another value.
OTHERS: dict[str, Any] = {
    "centered": True, "exclude_layers": ["b/"], "rms_rate": None, "warmup_steps": 3, "l1_regularization_strength": 0.1,
    "l2_regularization_strength": 0.1, "l2_shrinkage_regularization_strength": 0.1, "beta": 0.1, "momentum": 0.7,
    "nesterov": {"momentum": 0.7, "nesterov": True}, "amsgrad": True,
}  # fmt: skip


def test_the_arguments_are_those_of_keras() -> None:
    assert set(inspect.signature(PLAIN.__init__).parameters) - {"self"} == BASE.keys()
    assert CLASSES.keys() > REFUSED


def variables() -> list[Any]:
    generator = np.random.default_rng(1)
    made = []
    for path, shape in SHAPES.items():
        *scopes, name = path.split("/")
        with keras.name_scope(scopes[0] if scopes else "alone"):
            made.append(keras.Variable(generator.normal(size=shape).astype("float32"), name=name))
    made[0].constraint = keras.constraints.MaxNorm(0.9)
    return made


def gradients(step: int) -> list[torch.Tensor | None]:
    """Return the gradients of a step; those of the last two variables are missing at times."""
    generator = np.random.default_rng(100 + step)
    found = [torch.from_numpy(generator.normal(size=shape).astype("float32")) for shape in SHAPES.values()]
    missing = {5} if step % 2 else set()
    if step == 3:
        missing.add(4)
    return [None if number in missing else each for number, each in enumerate(found)]


class Served:
    """A rank with a server's store, to which its optimizer has come as it comes to the server's process."""

    def __init__(self, optimizer: Any, own: Sequence[Any], parcels: Sequence[Sequence[int]] = PARCELS) -> None:
        self.optimizer, self.own, self.parcels = optimizer, own, parcels
        parameters = [each.value for each in own]
        self.served = KerasServedOptimizer(optimizer, own, parameters)
        self.served.check(parameters)
        numbers = {id(each): number for number, each in enumerate(parameters)}
        part = pickle.loads(cloudpickle.dumps(self.served.part(numbers, parcels)))
        of_parcels = {place: (list(each), torch.float32) for place, each in enumerate(parcels)}
        self.store = Updates(1, None, of_parcels, part)
        self._settings = self.served.settings()
        self._num_told = 0

    def step(self, number: int, given: Sequence[torch.Tensor | None]) -> None:
        if self.served.settings() != self._settings:
            self._settings = self.served.settings()
            self._num_told += 1
            self.store.set(0, self._num_told, memoryview(self._settings.encode()))
        for place, parcel in enumerate(self.parcels):
            flags = bytes(given[each] is not None for each in parcel)
            flats = [torch.zeros(SHAPES_OF[each]) if given[each] is None else given[each] for each in parcel]
            content = flags + b"".join(each.numpy().tobytes() for each in flats)
            answer = asyncio.run(self.store.add(0, place, number, memoryview(bytearray(content))))
            values = np.frombuffer(answer, np.float32)
            for each in parcel:
                size = self.own[each].value.numel()
                self.own[each].assign(values[:size].reshape(self.own[each].shape))
                values = values[size:]
        count_step(self.optimizer)

    def pull(self) -> None:
        for place, parcel in enumerate(self.parcels):
            size = self.served.state_nbytes(parcel)
            state = self.store.state(place, 0) if size else b""
            assert len(state) == size
            if size:
                self.served.take(parcel, state)


def made(kind: Any, arguments: Arguments, own: Sequence[Any]) -> Any:
    optimizer = kind(**{"learning_rate": 0.05, **arguments})
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build(list(own))
    return optimizer


def assert_equal(found: Sequence[Any], wanted: Sequence[Any], arguments: Arguments) -> None:
    for one, other in zip(found, wanted, strict=True):
        text = f"{arguments} {one.path}"
        ours, kerass = (each.value.detach().numpy() for each in (one, other))
        np.testing.assert_allclose(ours, kerass, rtol=1e-5, atol=1e-7, err_msg=text)


def compare(kind: Any, arguments: Arguments, change: Callable[[Any, int], None] = lambda optimizer, step: None) -> None:
    """Train by Keras, and by a server from its second step on, which then has state to take over."""
    plain, own = variables(), variables()
    alone, optimizer = made(kind, arguments, plain), made(kind, arguments, own)
    scale = alone.loss_scale_factor or 1.0

    def step_alone(of: Any, on: Sequence[Any], given: Sequence[torch.Tensor | None]) -> None:
        pairs = [(each * scale, variable) for each, variable in zip(given, on, strict=True) if each is not None]
        with torch.no_grad():
            of.apply([each for each, _ in pairs], [each for _, each in pairs])

    step_alone(alone, plain, gradients(0))
    step_alone(optimizer, own, gradients(0))
    server = Served(optimizer, own)
    for step in range(1, 6):
        for each in (alone, optimizer):
            change(each, step)
        step_alone(alone, plain, gradients(step))
        server.step(step, gradients(step))
    assert_equal(own, plain, arguments)
    server.pull()
    assert_equal(optimizer.variables, alone.variables, arguments)
    if arguments.get("use_ema"):
        optimizer.finalize_variable_values(list(own))
        alone.finalize_variable_values(list(plain))
        assert_equal(own, plain, arguments)


def own_arguments(kind: Any) -> list[Arguments]:
    """Return another value for each argument that a class has beside those of the base class."""
    found: list[Arguments] = []
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name == "self" or name in BASE:
            continue
        default = parameter.default
        if name in OTHERS:
            value = OTHERS[name]
            has_all = isinstance(value, dict) and value.keys() <= inspect.signature(kind.__init__).parameters.keys()
            found.append(value if has_all else {name: not default if isinstance(default, bool) else value})
        elif isinstance(default, bool):
            found.append({name: not default})
        elif isinstance(default, int):
            found.append({name: default + 1})
        else:
            assert isinstance(default, float), f"{kind.__name__} has a new argument {name!r}"
            found.append({name: default * 0.5})
    return found


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - REFUSED))
def test_every_optimizer_with_every_argument_is_that_of_keras_alone(name: str) -> None:
    kind = CLASSES[name]
    for arguments in [{}, *(each for works, _ in BASE.values() for each in works), *own_arguments(kind)]:
        compare(kind, arguments)
    for _, refused in BASE.values():
        for each in refused:
            with raises(InvalidArgument, names=(name, *each)):
                Served(made(kind, each, own := variables()), own)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_optimizers_that_need_all_gradients_are_refused(name: str) -> None:
    own = variables()
    inner = keras.optimizers.SGD(0.1)
    optimizer = CLASSES[name](inner if name == "LossScaleOptimizer" else {"kernel": inner})
    with raises(InvalidArgument, names=name):
        KerasServedOptimizer(optimizer, own, [each.value for each in own])


class Adam(keras.optimizers.Adam):
    """A class of the user's own, with the name of one of Keras."""


class Own(keras.constraints.Constraint):
    def __call__(self, value: Any) -> Any:
        return value


def test_what_servers_cannot_make_is_refused() -> None:
    own = variables()
    optimizer = Adam(0.1)
    optimizer.build(own)
    with raises(InvalidArgument, names=("Adam", "SGD")):
        Served(optimizer, own)
    own[1].constraint = Own()
    with raises(InvalidArgument, names=("a/bias", "Own")):
        Served(made(keras.optimizers.SGD, {}, own), own)
    own = variables()
    own[2].overwrite_with_gradient = True
    with raises(InvalidArgument, names="embedding/table"):
        Served(made(keras.optimizers.SGD, {}, own), own)


def test_changes_of_settings_reach_the_servers() -> None:
    def change(optimizer: Any, step: int) -> None:
        if step == 2:
            optimizer.learning_rate = 0.4
        if step == 3:
            optimizer.clipnorm, optimizer.beta_1 = 0.2, 0.5
        if step == 4:
            optimizer._trainable_variables[0].constraint.max_value = 0.3

    compare(keras.optimizers.Adam, {"clipnorm": 1.0, "weight_decay": 0.1}, change)


def test_a_change_to_what_is_refused_is_refused() -> None:
    own = variables()
    server = Served(made(keras.optimizers.Adam, {}, own), own)
    server.optimizer.global_clipnorm = 1.0
    with raises(InvalidArgument, names="global_clipnorm"):
        server.step(1, gradients(1))


@pytest.mark.parametrize(
    "change",
    [
        lambda good: [],
        lambda good: {},
        lambda good: {**good, "more": 1},
        lambda good: {**good, "learning_rate": "fast"},
        lambda good: {**good, "optimizer": 3},
        lambda good: {**good, "optimizer": {"_iterations": 3}},
        lambda good: {**good, "optimizer": {"unknown": 3}},
        lambda good: {**good, "optimizer": {"beta_1": [3]}},
        lambda good: {**good, "constraints": {'{"module": "os", "class_name": "system", "config": {}}': [0]}},
        lambda good: {**good, "constraints": {"3": [0]}},
        lambda good: {**good, "constraints": {"{": [0]}},
        lambda good: {**good, "constraints": {'"max_norm"': 0}},
        lambda good: {**good, "constraints": {'{"module": "antigravity", "class_name": "MaxNorm", "config": {}}': [0]}},
    ],
)
def test_settings_that_do_not_fit_are_refused_and_change_nothing(change: Callable[[Any], Any]) -> None:
    own = variables()
    server = Served(made(keras.optimizers.Adam, {}, own), own)
    good = json.loads(server.served.settings())
    with pytest.raises(Refused):
        server.store.set(0, 0, memoryview(json.dumps(change(good)).encode()))
    assert {name: len(each) for name, each in slots_of(server.optimizer).items()} == {"_momentums": 6, "_velocities": 6}
    server.step(1, gradients(1))
    plain = variables()
    pairs = zip(gradients(1), plain, strict=True)
    made(keras.optimizers.Adam, {}, plain).apply_gradients([each for each in pairs if each[0] is not None])
    assert_equal(own, plain, {})


def test_only_parts_of_the_state_that_exist_are_given() -> None:
    own = variables()
    store = Served(made(keras.optimizers.Adam, {}, own), own).store
    assert len(store.state(0, 0)) == 2 * 4 * (9 + 10)
    for parcel, part in ((0, 1), (9, 0), (0, 1 << 60)):
        with pytest.raises(Refused):
            store.state(parcel, part)
