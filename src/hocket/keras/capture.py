"""Capture of the torch calls of a Keras operation, as a function that makes them without Keras.

Around each kernel call, Keras spends a long time on its arguments: types, axes, masks, scopes. For tensors of one shape
the outcome is always the same. So every torch call is recorded with all arguments (results of earlier calls, or
constants), and written as a Python function of the input tensors. The function makes the same torch calls in the same
order, so results, gradients and random numbers are equal bit for bit.

The function is Python source. A `torch.fx.Graph` would generate similar source, but has no names for properties of
tensors, and looks constants up in a module: ten additions of parameters took 15 us with it, and take 9 us here.

Some operations cannot be captured, and raise `Obstacle`: calls that read a tensor's content, which Python code could
branch on; calls whose results have shapes that depend on the content; arguments with a state, such as generators; and
calls inside a `torch.autograd.Function`, a checkpoint or vmap, whose effects are not visible here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

from hocket.keras.lifetimes import last_uses

Captured: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]

# Results that depend on the shape, strides, type and device of a tensor only, not on its content.
_FACT_TYPES = (torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
_FACTS = {
    torch.Tensor.__len__,
    torch.Tensor.dim,
    torch.Tensor.element_size,
    torch.Tensor.is_complex,
    torch.Tensor.is_contiguous,
    torch.Tensor.is_floating_point,
    torch.Tensor.nelement,
    torch.Tensor.numel,
    torch.Tensor.size,
    torch.Tensor.stride,
    torch.is_complex,
    torch.is_floating_point,
    torch.is_tensor,
    torch.numel,
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("is_cuda", "is_meta", "is_mkldnn", "is_quantized", "is_sparse", "itemsize", "nbytes", "ndim")
    ),
}
# Calls that have no effect if they return their first argument.
_SAME = {torch.Tensor.to, torch.Tensor.contiguous}
# Calls whose results have shapes that depend on the content of a tensor.
_OF_OTHER_SHAPES = {
    getattr(place, name)
    for place in (torch, torch.Tensor)
    for name in (
        "argwhere",
        "bincount",
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique",
        "unique_consecutive",
    )
    if hasattr(place, name)
}
_CONSTANTS = (bool, int, float, complex, str, type(None), type(...), np.generic, *_FACT_TYPES[1:])


class Obstacle(Exception):
    """The reason why an operation cannot be captured."""


class _Line(NamedTuple):
    """A line of the function, and the names of the tensors that it defines and uses."""

    text: str
    names: tuple[str, ...]


class Capture(TorchFunctionMode):
    """While entered, records the calls of torch.

    Args:
        inputs: the tensors that become parameters of the captured function, in order.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._kept: list[Any] = list(inputs)  # keeps objects alive, so that their ids stay unique
        self._names = {id(tensor): f"x{number}" for number, tensor in enumerate(inputs)}
        self._parameters = [f"x{number}" for number in range(len(inputs))]
        self._constants: dict[str, Any] = {}
        self._lines: list[_Line] = []
        self._used: list[str] = []  # names in the call that is being written
        self._had_gradients = self._has_gradients = torch.is_grad_enabled()
        self._sets_gradients = False
        self._hooks = _saved_tensors_hooks()
        self._obstacle: str | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._obstacle is not None:
            return func(*args, **kwargs)
        call = None
        try:
            self._check_surroundings()
            if func not in _FACTS:
                call = self._call(func, args, kwargs)  # before the call, which may write to its arguments
        except Obstacle as obstacle:
            self._stop(obstacle)
        result = func(*args, **kwargs)
        if call is not None:
            try:
                self._record(func, args, call, result)
            except Obstacle as obstacle:
                self._stop(obstacle)
        return result

    def finish(self, outputs: Sequence[Any]) -> Captured:
        """Return the function of the inputs that computes these outputs.

        Raises:
            Obstacle: the operation cannot be captured.
        """
        if self._obstacle is not None:
            raise Obstacle(self._obstacle)
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                raise Obstacle(f"it returns a {type(output).__name__}")
        result = f"return ({''.join(f'{self._expression(output)}, ' for output in outputs)})"
        kept = {*self._parameters, *self._constants, *map(self._expression, outputs)}
        lines = []
        for line, over in zip(self._lines, last_uses([each.names for each in self._lines], kept), strict=True):
            lines += [line.text, f"del {', '.join(over)}"] if over else [line.text]
        lines.append(result)
        if self._sets_gradients:  # restore the grad mode also if a call raises
            end = f"{self._constant(torch._C._set_grad_enabled)}({self._had_gradients})"
            lines = ["try:", *(f"    {line}" for line in lines), "finally:", f"    {end}"]
        source = "\n    ".join([f"def captured({', '.join(self._parameters)}):", *lines])
        names = dict(self._constants)
        exec(source, names)
        captured: Captured = names["captured"]
        return captured

    def _check_surroundings(self) -> None:
        """Refuse contexts that change the meaning of calls and are not calls themselves."""
        if torch.is_grad_enabled() is not self._has_gradients:
            raise Obstacle("it defines its own backward pass")
        if _saved_tensors_hooks() != self._hooks:
            raise Obstacle("it recomputes values in the backward pass")
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise Obstacle("it uses a transformation of functions, such as vmap")

    def _stop(self, obstacle: Obstacle) -> None:
        self._obstacle = str(obstacle)
        self._kept.clear()
        self._constants.clear()

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if (
            func in _OF_OTHER_SHAPES
            or (func is torch.where and len(args) == 1)
            or (func is torch.Tensor.__getitem__ and _has_truth_values(args[1]))
        ):
            raise Obstacle(f"the shape of its result depends on the content of a tensor ({resolve_name(func)})")
        self._used = []
        arguments = [self._expression(each) for each in args]
        arguments += [
            f"**{{{name!r}: {self._expression(each)}}}" if iskeyword(name) else f"{name}={self._expression(each)}"
            for name, each in kwargs.items()
        ]
        return f"{self._constant(func)}({', '.join(arguments)})"

    def _record(self, func: Any, args: tuple[Any, ...], call: str, result: Any) -> None:
        if func is torch._C._set_grad_enabled:
            self._has_gradients, self._sets_gradients = torch.is_grad_enabled(), True
        if isinstance(result, _FACT_TYPES):
            return
        if result is None:
            self._write(call)
        elif isinstance(result, torch.Tensor):
            if id(result) not in self._names:
                name = self._name(result)
                self._write(f"{name} = {call}", name)
            elif func not in _SAME or not args or result is not args[0]:
                self._write(call)
        elif isinstance(result, (tuple, list)) and all(isinstance(each, torch.Tensor) for each in result):
            whole = f"r{len(self._lines)}"
            self._write(f"{whole} = {call}", whole)
            for place, each in enumerate(result):
                if id(each) not in self._names:
                    name = self._name(each)
                    self._lines.append(_Line(f"{name} = {whole}[{place}]", (name, whole)))
        else:
            raise Obstacle(f"it reads the content of a tensor ({resolve_name(func) or func})")

    def _write(self, text: str, *defined: str) -> None:
        self._lines.append(_Line(text, (*defined, *self._used)))

    def _name(self, tensor: torch.Tensor) -> str:
        self._kept.append(tensor)
        self._names[id(tensor)] = f"t{len(self._kept)}"
        return self._names[id(tensor)]

    def _constant(self, value: Any) -> str:
        self._kept.append(value)
        name = f"c{len(self._kept)}"
        self._constants[name] = value
        return name

    def _expression(self, value: Any) -> str:
        """Return the source of an argument: the names of tensors, and the present values of all else."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._names:  # a variable, or a tensor that no recorded call made
                self._names[id(value)] = self._constant(value)
            self._used.append(self._names[id(value)])
            return self._used[-1]
        if type(value) in (torch.Size, tuple):
            return f"({''.join(f'{self._expression(each)}, ' for each in value)})"
        if isinstance(value, list):
            return f"[{', '.join(self._expression(each) for each in value)}]"
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return f"{{{', '.join(f'{key!r}: {self._expression(each)}' for key, each in value.items())}}}"
        if isinstance(value, slice):
            parts = (self._expression(each) for each in (value.start, value.stop, value.step))
            return f"slice({', '.join(parts)})"
        if type(value) in (bool, int, type(None)):
            return repr(value)
        if isinstance(value, np.ndarray):
            return self._constant(value.copy())
        if isinstance(value, _CONSTANTS):
            return self._constant(value)
        raise Obstacle(f"it passes a {type(value).__name__} to torch")


def _has_truth_values(index: Any) -> bool:
    each_axis = index if isinstance(index, tuple) else (index,)
    return any(isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8) for each in each_axis)


def _saved_tensors_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)
