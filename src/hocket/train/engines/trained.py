"""What an exchange of gradients needs of a model, checked when it begins and after every backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hocket.errors import InvalidModel, InvalidState, InvalidType

_OTHERS = {"DistributedDataParallel": "model.module", "FullyShardedDataParallel": "the module that it wraps"}
"""Wrappers that exchange gradients themselves, and what to pass in their place."""


class TrainedParameters:
    """The parameters of a model that require gradients.

    Args:
        model: the module.

    Attributes:
        named: the parameters by name; one that several modules share occurs once.

    Raises:
        InvalidType, InvalidModel, InvalidState: see `hocket.train.GradientExchange`.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidType(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if torch.is_inference_mode_enabled():
            raise InvalidState("torch.inference_mode() is on, in which nothing can be trained: begin outside of it")
        for name, module in model.named_modules():
            _check_module(name, module)
        self._places = [
            (module._parameters, own, f"{prefix}.{own}" if prefix else own, each)
            for prefix, module in model.named_modules()
            for own, each in module._parameters.items()
            if each is not None
        ]
        self._frozen = {id(each) for _, _, _, each in self._places if not each.requires_grad}
        self.named = {name: each for name, each in model.named_parameters() if each.requires_grad}
        for name, each in model.named_parameters():
            _check_parameter(name, each)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            _check_memory(name, tensor)
        if not self.named:
            raise InvalidModel(f"no parameter of {type(model).__name__} requires a gradient: set requires_grad = True")

    def check_unchanged(self) -> None:
        """Check that all gradients of the model are exchanged still.

        Raises:
            InvalidState: a parameter was replaced, or requires a gradient only now.
        """
        for holder, own, name, each in self._places:
            if holder.get(own) is not each:
                what = "has been replaced, as load_state_dict(assign=True) does"
            elif each.requires_grad and id(each) in self._frozen:
                what = "requires a gradient only since then"
            else:
                continue
            raise InvalidState(
                f"the exchange of gradients began with other parameters: {name} {what}; close it, and make a new one"
            )


def _check_module(name: str, module: nn.Module) -> None:
    for each in type(module).__mro__:
        if each.__name__ in _OTHERS and each.__module__.startswith("torch."):
            raise InvalidModel(
                f"{name or 'the model'} is a {each.__name__}, which exchanges gradients itself: pass "
                f"{_OTHERS[each.__name__]}"
            )
    if getattr(module, "sparse", False) is True:
        raise InvalidModel(
            f"module {name!r} ({type(module).__name__}) has sparse gradients, which no engine sums: pass sparse=False"
        )


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if nn.parameter.is_lazy(parameter):
        raise InvalidModel(f"{name} has no shape yet: give the model a batch before")
    if any(each.__name__ == "DTensor" for each in type(parameter).__mro__):
        raise InvalidModel(f"{name} is a DTensor, of which a rank has a part, as after fully_shard: pass a whole model")
    if parameter.is_meta:
        raise InvalidModel(f"{name} is on device 'meta', without values: move the model to a device before")
    if parameter.is_inference():
        raise InvalidModel(f"{name} was made in torch.inference_mode(), and cannot be trained: make it outside of it")


def _check_memory(name: str, tensor: torch.Tensor) -> None:
    """Check that rank 0's values can be written into a tensor: an expanded one has elements that share memory."""
    if tensor.layout != torch.strided or nn.parameter.is_lazy(tensor):
        return
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise InvalidModel(
            f"{name} is expanded, so that its elements share memory, and cannot be set to rank 0's: use "
            f"{name}.contiguous() in its place"
        )


def check_gradient(name: str, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Check that engines can exchange a gradient.

    Raises:
        InvalidModel: it is sparse, or of another type than its parameter.
        InvalidState: it has a graph of its own.
    """
    if gradient.layout != torch.strided:
        raise InvalidModel(f"the gradient of {name} is sparse, and no engine sums those")
    if gradient.dtype != parameter.dtype:
        raise InvalidModel(
            f"the gradient of {name} is of {gradient.dtype}, and {name} of {parameter.dtype}: engines need one type"
        )
    if gradient.requires_grad:
        raise InvalidState(
            f"the gradient of {name} has a graph (create_graph=True), in which the other ranks are not: compute "
            "gradients of gradients by torch.autograd.grad, then one loss.backward()"
        )


def check_step(optimizer: torch.optim.Optimizer, num_groups: int, args: tuple[Any, ...], kwargs: Any) -> None:
    """Check that servers can take the step of an optimizer in its place.

    Args:
        optimizer: the optimizer.
        num_groups: its number of groups at the beginning.
        args, kwargs: arguments of its `step`.

    Raises:
        InvalidState: they cannot.
    """
    kind = type(optimizer).__name__
    if kwargs.get("closure") is not None or any(each is not None for each in args[1:]):
        raise InvalidState(
            f"{kind}.step has a closure, which would compute gradients after the exchange: call backward() before "
            "step(), without a closure"
        )
    if len(optimizer.param_groups) != num_groups:
        raise InvalidState(
            f"{kind} had {num_groups} groups of parameters when the exchange of gradients began, and has "
            f"{len(optimizer.param_groups)}: close it, and make a new one"
        )
    if getattr(optimizer, "found_inf", None) is not None or getattr(optimizer, "grad_scale", None) is not None:
        raise InvalidState(
            f"{kind} with fused=True leaves scaled gradients to its kernel, and parameter servers do not know the "
            "scale: use fused=False with a GradScaler"
        )
