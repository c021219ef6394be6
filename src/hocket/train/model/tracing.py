"""Tracing of a module, which refuses what a trace would silently leave out, such as modes of autograd."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import fx, nn
from torch.utils.checkpoint import CheckpointFunction

from hocket.errors import InvalidModel, first_line
from hocket.train.model.modes import Modes

_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", *_BACKWARD_HOOKS)
_APPLY = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]


class Tracer(fx.Tracer):
    """Records the operations of a module; a `torch.autograd.Function` is one operation.

    Raises:
        InvalidModel: operations run under modes that a graph cannot record, such as `torch.no_grad()`.
    """

    def __init__(self, with_buffers: bool = False) -> None:
        super().__init__()
        self.proxy_buffer_attributes = with_buffers
        self._modes = _modes()

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        def apply(kind: Any, *arguments: Any, **keywords: Any) -> Any:
            if kind is CheckpointFunction:
                return _recomputed(*arguments)
            if any(isinstance(each, fx.Proxy) for each in (*arguments, *keywords.values())):
                return self.create_proxy("call_function", _call_of(kind), arguments, keywords)
            return _APPLY(kind, *arguments, **keywords)

        with mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)):
            return super().trace(root, concrete_args)

    def create_node(self, kind: str, *arguments: Any, **keywords: Any) -> fx.Node:
        for name, value in _modes().items():
            if value != self._modes[name]:
                raise InvalidModel(f"it has operations under {name}, which tracing does not record")
        return super().create_node(kind, *arguments, **keywords)


def trace(model: nn.Module, modes: Modes) -> tuple[fx.Graph, fx.Graph]:
    """Return the operations of a module in training mode and in evaluation mode.

    Raises:
        InvalidModel: the module cannot be traced, or a trace would leave something out.
    """
    graphs = []
    for mode in (True, False):
        check_hooks(model, is_leaf)
        with modes.set_to(mode):
            graphs.append(_trace(model))
    check_hooks(model, is_leaf)  # again: the module's code may have registered hooks while it was traced
    return graphs[0], graphs[1]


def _trace(model: nn.Module) -> fx.Graph:
    before = random_state()
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    versions = [buffer._version for buffer, _ in kept]
    try:
        graph = Tracer().trace(model)
        if any(node.op == "get_attr" and str(node.target).startswith("_tensor_constant") for node in graph.nodes):
            # Constants that were computed, perhaps from buffers: every pass must read buffers, which may change.
            graph = Tracer(with_buffers=True).trace(model)
    except InvalidModel as error:
        raise InvalidModel(
            f"{type(model).__name__} cannot be traced: {error}; use graph_of_exported, which traces with torch.export"
        ) from error
    except Exception as error:  # the code of the model may raise anything
        raise InvalidModel(
            f"{type(model).__name__} cannot be traced, since its code depends on its inputs ({first_line(error)}). Use "
            "a torch.nn.Sequential of its parts, which needs no tracing, or graph_of_exported, which allows code that "
            "depends on the shapes of its inputs"
        ) from error
    changed = [buffer._version != version for (buffer, _), version in zip(kept, versions, strict=True)]
    for (buffer, content), is_changed in zip(kept, changed, strict=True):
        if is_changed:
            buffer.copy_(content)
    drew = random_state() != before
    if drew or any(changed):
        what = "draws random numbers" if drew else "writes to its buffers"
        raise InvalidModel(
            f"{type(model).__name__} {what} in its own code, which a trace would do only once: use modules such as "
            "torch.nn.Dropout for it, or graph_of_exported, which traces with torch.export"
        )
    return graph


@contextmanager
def refusing_what_export_leaves_out() -> Iterator[None]:
    """Within the context, refuse code whose effects torch.export would silently leave out.

    Raises:
        InvalidModel: a function defines its own backward pass, or a hook is registered on a tensor.
    """

    def apply(kind: Any, *arguments: Any, **keywords: Any) -> Any:
        if kind is CheckpointFunction:
            return _recomputed(*arguments)
        if not kind.__module__.startswith("torch."):
            raise InvalidModel(f"{kind.__name__} defines its own backward pass, which torch.export leaves out")
        return _APPLY(kind, *arguments, **keywords)

    def register_hook(*_: Any) -> None:
        raise InvalidModel("a hook is registered on a tensor, which torch.export leaves out")

    with (
        mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)),
        mock.patch.object(torch.Tensor, "register_hook", register_hook),
    ):
        yield


def is_leaf(module: nn.Module) -> bool:
    """Return whether `torch.fx` keeps a module whole."""
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)


def check_hooks(model: nn.Module, is_whole: Callable[[nn.Module], bool]) -> None:
    """Check that a model has no hooks that would not be called when its parts run instead of the model.

    Args:
        model: the model; its own hooks would not be called.
        is_whole: whether a submodule is called as a whole; of other submodules only forward hooks are called.

    Raises:
        InvalidModel: the model has such hooks.
    """
    for name, parameter in model.named_parameters():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InvalidModel(
                f"parameter {name!r} has post-accumulate hooks, which some schedules do not call: remove them"
            )
    for name, module in model.named_modules():
        left_out = _HOOKS if module is model else () if is_whole(module) else _BACKWARD_HOOKS
        if any(getattr(module, each) for each in left_out):
            what = f"module {name!r}" if name else type(model).__name__
            raise InvalidModel(
                f"{what} has hooks, which are not called when its parts run on several ranks: remove them, or register "
                "them on modules of torch.nn"
            )


def random_state() -> tuple[Any, ...]:
    """Return the states of the generators of torch, Python and NumPy, as values with ``==``."""
    state_of_numpy = [each.tobytes() if isinstance(each, np.ndarray) else each for each in np.random.get_state()]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), *state_of_numpy


def _recomputed(run: Callable[..., Any], _: bool, *arguments: Any) -> Any:
    """Call the function that `torch.utils.checkpoint` with use_reentrant=True would first run under no_grad."""
    return run(*arguments)


@cache
def _call_of(kind: Any) -> Callable[..., Any]:
    """Return `apply` of an autograd function as a plain function with a name, for generated code."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return kind.apply(*arguments, **keywords)

    call.__name__ = call.__qualname__ = kind.__name__
    call.__module__ = kind.__module__
    return call


def _modes() -> dict[str, Any]:
    modes: dict[str, Any] = {
        "torch.no_grad() or set_grad_enabled()": torch.is_grad_enabled(),
        "torch.inference_mode()": torch.is_inference_mode_enabled(),
    }
    for device in ("cpu", "cuda"):
        is_on = torch.is_autocast_enabled(device)
        modes[f"torch.autocast({device!r})"] = is_on and torch.get_autocast_dtype(device)
    return modes
