"""The torch calls that a Keras operation makes, captured as they go by, and made again without Keras.

Around each call of a kernel Keras spends long on looking at its arguments: types, axes, masks, scopes. For tensors of
one shape the outcome is always the same. So what reaches torch is noted, call by call with all arguments (which results
of earlier calls they are, or which constants), and written as a function of the tensors that went in. As it makes the
same calls of torch in the same order, results, gradients and random numbers are the same bit for bit.

What cannot be captured says so: calls that read a tensor's content, on which Python might act, and arguments with a
state of their own, such as generators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name

Captured: TypeAlias = Callable[..., tuple[torch.Tensor, ...]]

# Answers that follow from shape, strides, type and device of a tensor, whatever its content.
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
# Calls without effect where they return their first argument.
_SAME = {torch.Tensor.to, torch.Tensor.contiguous}
_CONSTANTS = (bool, int, float, complex, str, type(None), type(...), np.generic, *_FACT_TYPES[1:])


class Obstacle(Exception):
    """Why something cannot be captured."""


class Capture(TorchFunctionMode):
    """While entered, notes the calls of torch.

    Args:
        inputs: tensors that the captured function will be called with, in order.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._kept: list[Any] = list(inputs)  # as long as they live, nothing else has their ids
        self._names = {id(tensor): f"x{number}" for number, tensor in enumerate(inputs)}
        self._parameters = [f"x{number}" for number in range(len(inputs))]
        self._constants: dict[str, Any] = {}
        self._lines: list[str] = []
        self._has_gradients = torch.is_grad_enabled()
        self._obstacle: Obstacle | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._obstacle is not None:
            return func(*args, **kwargs)
        try:
            call = None if func in _FACTS else self._call(func, args, kwargs)  # as they are now: it may write to them
        except Obstacle as obstacle:
            self._obstacle = obstacle
            return func(*args, **kwargs)
        found = func(*args, **kwargs)
        if call is not None:
            try:
                self._note(func, args, call, found)
            except Obstacle as obstacle:
                self._obstacle = obstacle
        return found

    def finish(self, outputs: Sequence[Any]) -> Captured:
        """Return the function of the inputs that gives these outputs.

        Raises:
            Obstacle: there is none.
        """
        if self._obstacle is not None:
            raise self._obstacle
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                raise Obstacle(f"it gives a {type(output).__name__}")
        result = f"return ({''.join(f'{self._expression(output)}, ' for output in outputs)})"
        lines = [*self._lines, result]
        if torch._C._set_grad_enabled in self._constants.values():  # whatever a call in between may raise
            end = f"{self._constant(torch._C._set_grad_enabled)}({self._has_gradients})"
            lines = ["try:", *(f"    {line}" for line in lines), "finally:", f"    {end}"]
        source = "\n    ".join([f"def captured({', '.join(self._parameters)}):", *lines])
        names = dict(self._constants)
        exec(source, names)
        captured: Captured = names["captured"]
        return captured

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        given = [self._expression(each) for each in args]
        given += [f"{name}={self._expression(each)}" for name, each in kwargs.items()]
        return f"{self._constant(func)}({', '.join(given)})"

    def _note(self, func: Any, args: tuple[Any, ...], call: str, found: Any) -> None:
        if isinstance(found, _FACT_TYPES):
            return
        if found is None:
            self._lines.append(call)
        elif isinstance(found, torch.Tensor):
            if id(found) not in self._names:
                self._lines.append(f"{self._name(found)} = {call}")
            elif func not in _SAME or not args or found is not args[0]:
                self._lines.append(call)
        elif isinstance(found, (tuple, list)) and all(isinstance(each, torch.Tensor) for each in found):
            whole = f"r{len(self._kept)}"
            self._lines.append(f"{whole} = {call}")
            self._lines += [
                f"{self._name(each)} = {whole}[{place}]"
                for place, each in enumerate(found)
                if id(each) not in self._names
            ]
        else:
            raise Obstacle(f"it reads what is in a tensor ({resolve_name(func) or func})")

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
        """What stands for an argument: names of tensors, and of everything else its value as it is now."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._names:  # a variable, or made without torch's knowledge
                self._names[id(value)] = self._constant(value)
            return self._names[id(value)]
        if isinstance(value, (torch.Size, tuple)) and type(value).__name__ in ("Size", "tuple"):
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
        raise Obstacle(f"it hands torch a {type(value).__name__}")
