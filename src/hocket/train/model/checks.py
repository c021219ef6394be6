"""Checks of a model before it is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hocket.errors import InvalidModel, InvalidType

# Modules of torch that wrap another module and change how it runs, and the attribute with the wrapped module.
_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}


def check_model(model: Any) -> None:
    """Check that a model can be traced.

    Raises:
        InvalidType: `model` is not a module.
        InvalidModel: it wraps another module, is TorchScript, or has a parameter without a shape.
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"a model must be a torch.nn.Module, not {model!r}")
    kind = type(model).__name__
    if kind in _WRAPPERS and type(model).__module__.startswith("torch."):
        raise InvalidModel(f"{kind} wraps a model: pass the wrapped model, `model.{_WRAPPERS[kind]}`")
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidModel(f"{kind} is TorchScript, which cannot be traced: pass the module that it was made from")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InvalidModel(f"{name!r} has no shape yet: call the model once with an example batch")


def check_content(tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that parameters and buffers, by name, can be trained.

    Raises:
        InvalidModel: one is on the meta device, or was made in torch.inference_mode().
    """
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise InvalidModel(
                f"{name!r} is on the meta device and has no content: give the model content, as by "
                'model.to_empty(device="cpu") and model.load_state_dict(...)'
            )
        if tensor.is_inference():
            raise InvalidModel(f"{name!r} was made in torch.inference_mode(): make the model outside of that mode")
