"""What a training is made of, looked at before anything is traced or sent."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidModel, InvalidType

# Modules that run another one their own way, and where they keep it.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}


def check_model(model: Any) -> None:
    """Check that a model can be traced.

    Raises:
        InvalidType: it is no module.
        InvalidModel: it wraps another one, is TorchScript, or has a parameter without a shape.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"a model is a torch.nn.Module, not {model!r}")
    kind = type(model).__name__
    if kind in _WRAPPERS and type(model).__module__.startswith("torch."):
        raise InvalidModel(f"{kind} runs a model in its own way: give the model in it, `model.{_WRAPPERS[kind]}`")
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidModel(f"{kind} is TorchScript, which cannot be traced: give the module that it was made of")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InvalidModel(f"{name!r} has no shape yet: call the model once, with an example of a batch")


def check_content(tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that parameters and buffers, by name, can be trained.

    Raises:
        InvalidModel: one has no content, or autograd takes no part in it.
    """
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise InvalidModel(
                f"{name!r} is on the meta device and has no content: give a model that has, such as after "
                'model.to_empty(device="cpu") and model.load_state_dict(...)'
            )
        if tensor.is_inference():
            raise InvalidModel(f"{name!r} was made in torch.inference_mode(): make the model outside of it")


def check_optimizers(optimizers: Sequence[Any], model: nn.Module) -> None:
    """Check that optimizers together change exactly what is to be trained of a model, and can do so rank by rank.

    Raises:
        InvalidType: the list is empty, or an item is not an optimizer.
        InvalidModel: there is nothing to train.
        InvalidArgument: a parameter of the model is missing, is in two optimizers, or is not the model's; or an
            optimizer computes the loss again within a step.
    """
    for each in optimizers or [None]:
        if not isinstance(each, torch.optim.Optimizer):
            raise InvalidType(f"optimizer is a torch optimizer, several, or makes one of parameters, not {each!r}")
    kind = " and ".join(dict.fromkeys(type(each).__name__ for each in optimizers))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not trained:
        raise InvalidModel(f"no parameter of {type(model).__name__} requires a gradient: there is nothing to train")
    names = {id(each): name for name, each in model.named_parameters()}
    all_given = [id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]]
    given = set(all_given)
    absent = [name for name, each in trained.items() if id(each) not in given]
    if absent:
        verb = "do" if len(optimizers) > 1 else "does"
        others = f", nor {len(absent) - 1} others" if len(absent) > 1 else ""
        raise InvalidArgument(
            f"{kind} {verb} not have parameter {absent[0]!r} of the model{others}: give it all of them, "
            "or set requires_grad = False of those that stay as they are"
        )
    own = {id(each) for each in model.parameters()}
    if not given <= own:
        raise InvalidArgument(
            f"{kind} has {len(given - own)} parameters that are not the model's, which ranks would change each in its "
            "way: make what has them a part of the model"
        )
    if len(given) < len(all_given):
        twice = next(each for each in all_given if all_given.count(each) > 1)
        raise InvalidArgument(f"parameter {names[twice]!r} is in two optimizers: a step would change it twice")
    for each in optimizers:
        closure = inspect.signature(type(each).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            kind = type(each).__name__
            raise InvalidArgument(f"{kind} computes the loss again within a step (closure), which a pipeline does not")


def check_loss(loss: Any) -> None:
    """Check that a loss can be called.

    Raises:
        InvalidType: it cannot, or is a class.
    """
    if isinstance(loss, type) or not callable(loss):
        raise InvalidType(f"loss is a function of the model's output and the target, or a module, not {loss!r}")


def check_loss_value(value: Any) -> None:
    """Check what a loss gave.

    Raises:
        InvalidType: it is no tensor.
        InvalidArgument: it is not one number.
    """
    if not isinstance(value, torch.Tensor):
        raise InvalidType(f"a loss gives a tensor of one number, not a {type(value).__name__}")
    if value.numel() != 1:
        raise InvalidArgument(
            f"a loss gives one number for a micro-batch, not a tensor of shape {tuple(value.shape)}: take the mean"
        )


def check_loss_graph(loss: torch.Tensor, others: Mapping[int, str]) -> None:
    """Check that a loss takes nothing of the model but what its last stage gave.

    Args:
        loss: with its graph.
        others: names of parameters that other stages have, by their ids.

    Raises:
        InvalidModel: it takes one of them, which would get no gradient by that.
    """
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = others.get(id(getattr(node, "variable", None)))
        if name is not None:
            raise InvalidModel(
                f"the loss reads parameter {name!r} of another stage, which is trained on another rank: leave decay of "
                "weights to the optimizer (weight_decay), and make other losses of parts outputs of the model"
            )
        waiting += [each for each, _ in node.next_functions]


def check_callbacks(callbacks: Iterable[Any], kind: type) -> None:
    """Check that callbacks are instances of a class.

    Raises:
        InvalidType: one is not.
    """
    for each in callbacks:
        if not isinstance(each, kind):
            raise InvalidType(f"a callback is a {kind.__module__}.{kind.__name__}, not {each!r}")


def check_seed(seed: Any) -> None:
    """Check a seed.

    Raises:
        InvalidArgument: it is no whole number that generators take.
    """
    check_count("seed", seed, 0)
    if seed >= 1 << 32:
        raise InvalidArgument(f"seed is less than 2**32, not {seed}")


def check_alike(comm: Communicator, **options: Any) -> None:
    """Check that all ranks have been given the same; called by all of them.

    Args:
        comm: of all ranks.
        options: numbers, words and the like, by name.

    Raises:
        InvalidArgument: they have not; raised on every rank.
    """
    of_ranks = comm.all_gather_object(options)
    for name in options:
        values = [each.get(name) for each in of_ranks]
        for rank, value in enumerate(values):
            if value != values[0]:
                raise InvalidArgument(
                    f"{name} is {values[0]!r} on rank 0 and {value!r} on rank {rank}: give all the same"
                )


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Check an argument that says how many.

    Raises:
        InvalidArgument: it is no int, or too small.
    """
    if type(value) is not int or value < least:
        raise InvalidArgument(f"{name} is a whole number of {least} or more, not {value!r}")
