"""Traces a module, and refuses what a trace would leave out without a word, such as modes of autograd."""

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
    """Notes the operations of a module; those with a gradient of their own (`torch.autograd.Function`) stay whole.

    Raises:
        InvalidModel: operations run under modes that nothing is noted of, such as within `torch.no_grad()`.
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
                raise InvalidModel(f"it has operations under {name}, which tracing does not note")
        return super().create_node(kind, *arguments, **keywords)


def trace(model: nn.Module, modes: Modes) -> tuple[fx.Graph, fx.Graph]:
    """Return the operations of a module in training and in evaluation.

    Raises:
        InvalidModel: it cannot be traced, or a trace would leave something out.
    """
    graphs = []
    for mode in (True, False):
        check_hooks(model, is_leaf)
        with modes.set_to(mode):
            graphs.append(_trace(model))
    check_hooks(model, is_leaf)  # what its own code has registered in the meantime
    return graphs[0], graphs[1]


def _trace(model: nn.Module) -> fx.Graph:
    before = random_state()
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    versions = [buffer._version for buffer, _ in kept]
    try:
        graph = Tracer().trace(model)
        if any(node.op == "get_attr" and str(node.target).startswith("_tensor_constant") for node in graph.nodes):
            # Tensors that were computed, perhaps of buffers: these are to be read in every pass, as they may change.
            graph = Tracer(with_buffers=True).trace(model)
    except InvalidModel as error:
        raise InvalidModel(
            f"{type(model).__name__} cannot be traced: {error}; graph_of_exported does, with torch.export"
        ) from error
    except Exception as error:  # whatever the code of the model raises
        raise InvalidModel(
            f"{type(model).__name__} cannot be traced, as what it does depends on its inputs ({first_line(error)}). A "
            "torch.nn.Sequential of its parts needs no tracing; graph_of_exported traces with torch.export what "
            "depends on no more than the shapes of its inputs"
        ) from error
    changed = [buffer._version != version for (buffer, _), version in zip(kept, versions, strict=True)]
    for (buffer, content), is_changed in zip(kept, changed, strict=True):
        if is_changed:
            buffer.copy_(content)
    drew = random_state() != before
    if drew or any(changed):
        what = "draws random numbers" if drew else "writes to its buffers"
        raise InvalidModel(
            f"{type(model).__name__} {what} in code of its own, which tracing would do once and never again; modules "
            "such as torch.nn.Dropout may, and graph_of_exported traces it with torch.export"
        )
    return graph


@contextmanager
def refusing_what_export_leaves_out() -> Iterator[None]:
    """Refuse what torch.export goes through without keeping it.

    Raises:
        InvalidModel: a function has a gradient of its own, or a tensor gets a hook.
    """

    def apply(kind: Any, *arguments: Any, **keywords: Any) -> Any:
        if kind is CheckpointFunction:
            return _recomputed(*arguments)
        if not kind.__module__.startswith("torch."):
            raise InvalidModel(f"{kind.__name__} has a backward pass of its own, which torch.export leaves out")
        return _APPLY(kind, *arguments, **keywords)

    def register_hook(*_: Any) -> None:
        raise InvalidModel("a tensor gets a hook, which torch.export leaves out")

    with (
        mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)),
        mock.patch.object(torch.Tensor, "register_hook", register_hook),
    ):
        yield


def is_leaf(module: nn.Module) -> bool:
    """Return whether `torch.fx` keeps a module whole."""
    return type(module).__module__.startswith("torch.nn") and not isinstance(module, nn.Sequential)


def check_hooks(model: nn.Module, is_whole: Callable[[nn.Module], bool]) -> None:
    """Check that no hooks are left out where a model's parts are run and not the model itself.

    Args:
        model: whose own hooks nobody calls.
        is_whole: of a module within it, whether that is called as it is; of others forward hooks alone are run.

    Raises:
        InvalidModel: there are some.
    """
    for name, parameter in model.named_parameters():
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InvalidModel(
                f"parameter {name!r} has post-accumulate hooks, which not every schedule calls: remove them"
            )
    for name, module in model.named_modules():
        left_out = _HOOKS if module is model else () if is_whole(module) else _BACKWARD_HOOKS
        if any(getattr(module, each) for each in left_out):
            what = f"module {name!r}" if name else type(model).__name__
            raise InvalidModel(
                f"{what} has hooks, which nobody calls where its parts run on several ranks: remove them, or put "
                "them on modules of torch.nn"
            )


def random_state() -> tuple[Any, ...]:
    """Return where the generators of torch, Python and NumPy stand, to be compared."""
    of_numpy = [each.tobytes() if isinstance(each, np.ndarray) else each for each in np.random.get_state()]
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), *of_numpy


def _recomputed(run: Callable[..., Any], _: bool, *arguments: Any) -> Any:
    """What `torch.utils.checkpoint` with use_reentrant=True computes twice, without gradients at first."""
    return run(*arguments)


@cache
def _call_of(kind: Any) -> Callable[..., Any]:
    """A function's `apply` as a plain function, which generated code can name."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return kind.apply(*arguments, **keywords)

    call.__name__ = call.__qualname__ = kind.__name__
    call.__module__ = kind.__module__
    return call


def _modes() -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch.no_grad() or set_grad_enabled()": torch.is_grad_enabled(),
        "torch.inference_mode()": torch.is_inference_mode_enabled(),
    }
    for device in ("cpu", "cuda"):
        is_on = torch.is_autocast_enabled(device)
        found[f"torch.autocast({device!r})"] = is_on and torch.get_autocast_dtype(device)
    return found
