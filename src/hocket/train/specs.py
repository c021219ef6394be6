"""What values look like, without their content: shapes, types, and whether gradients come back for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from hocket.errors import HocketError, InvalidModel

# What travels as a tensor without being one; None travels as a number that says nothing.
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, type(None): torch.bool}


@dataclass(frozen=True)
class LeafSpec:
    """A tensor, or a number that travels as one.

    Args:
        shape, dtype: of it.
        has_gradient: whether a gradient of it comes back.
        number: the type of what is no tensor: bool, int, float, or that of None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool = False
    number: type | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its content."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True)
class ValueSpec:
    """A value: a tree of tensors and numbers.

    Args:
        tree: how its leaves hang together.
        leaves: of it.
    """

    tree: pytree.TreeSpec
    leaves: tuple[LeafSpec, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that cross between ranks if it does."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_spec, (pytree.treespec_dumps(self.tree), self.leaves)

    def __str__(self) -> str:
        words = [f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in self.leaves]
        return words[0] if len(words) == 1 else f"({', '.join(words)})"


def flatten(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a value, and how they hang together."""
    return pytree.tree_flatten(tuple(value) if isinstance(value, torch.Size) else value)


def number_of(leaf: Any, kind: type) -> Any:
    """Return the number, or None, that came as a tensor."""
    return None if kind is type(None) else kind(leaf.item())


def _load_spec(tree: str, leaves: tuple[LeafSpec, ...]) -> ValueSpec:
    return ValueSpec(pytree.treespec_loads(tree), leaves)


def spec_of(value: Any, what: str) -> ValueSpec:
    """Return the spec of a value.

    Raises:
        InvalidModel: it holds something that is neither a tensor nor a number, and cannot travel.
    """
    leaves, tree = flatten(value)
    return ValueSpec(tree, tuple(_leaf_spec(leaf, what) for leaf in leaves))


def _leaf_spec(leaf: Any, what: str) -> LeafSpec:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout != torch.strided:
            raise InvalidModel(f"{what} is a {leaf.layout} tensor; only strided ones cross between stages")
        return LeafSpec(tuple(int(each) for each in leaf.shape), leaf.dtype, leaf.requires_grad)
    if type(leaf) in NUMBERS:
        return LeafSpec((), NUMBERS[type(leaf)], number=type(leaf))
    raise InvalidModel(
        f"{what} holds a {type(leaf).__name__}; tensors, numbers, and tuples, lists and dictionaries of them cross "
        "between stages"
    )


def blank(spec: ValueSpec) -> Any:
    """Return a value with such leaves, whose content is undefined; tensors are as the device context has it."""
    leaves = [
        (None if leaf.number is type(None) else leaf.number(1))
        if leaf.number
        else torch.empty(leaf.shape, dtype=leaf.dtype).requires_grad_(leaf.has_gradient)
        for leaf in spec.leaves
    ]
    return pytree.tree_unflatten(leaves, spec.tree)


@dataclass(frozen=True)
class Inferred:
    """What a stage makes of inputs with these specs.

    Args:
        outputs: of it.
        changed: inputs that it writes to, by their places; these have to be copies.
    """

    outputs: tuple[ValueSpec, ...]
    changed: tuple[int, ...]


def infer(module: nn.Module, inputs: Sequence[ValueSpec], names: Sequence[str], what: str) -> Inferred:
    """Run a module on tensors without content, and say what comes out. The module stays as it is.

    Args:
        module: returns a tuple.
        inputs: what goes in.
        names: of what comes out, for messages.
        what: the module is called in messages.

    Raises:
        InvalidModel: what comes out depends on the content of the inputs, or cannot cross between stages.
    """
    state = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():
        fakes: dict[int, torch.Tensor] = {}
        for each in state.values():
            if id(each) not in fakes:
                fakes[id(each)] = mode.from_tensor(each.detach()).requires_grad_(each.requires_grad)
        replaced = {name: fakes[id(each)] for name, each in state.items()}
        # Copies, since what requires a gradient itself must not be written to.
        values = [pytree.tree_map_only(torch.Tensor, torch.clone, blank(each)) for each in inputs]
        before = [_versions(value) for value in values]
        try:
            outputs = torch.func.functional_call(module, replaced, tuple(values))
        except HocketError:
            raise
        except Exception as error:  # whatever the code of the model raises
            raise _refusal(what, error) from error
        changed = tuple(number for number, value in enumerate(values) if _versions(value) != before[number])
        return Inferred(
            tuple(spec_of(each, f"value {name!r}") for name, each in zip(names, outputs, strict=True)), changed
        )


def _versions(value: Any) -> list[int]:
    return [leaf._version for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _refusal(what: str, error: Exception) -> InvalidModel:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return InvalidModel(
        f"{what} cannot be part of a pipeline: what it gives has to follow from the shapes of what it takes alone "
        f"({type(error).__name__}: {reason})"
    )
