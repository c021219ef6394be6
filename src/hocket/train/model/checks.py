"""What a model must be before it is traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hocket.errors import InvalidModel, InvalidType

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
