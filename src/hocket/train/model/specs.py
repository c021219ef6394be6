"""What values look like, without their content: shapes, types, and whether gradients come back for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from hocket.errors import HocketError, InvalidModel, first_line
from hocket.train.model.operand_types import OperandTypes

# What travels as a tensor without being one; None travels as a number that says nothing.
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, type(None): torch.bool}


@dataclass(frozen=True)
class LeafSpec:
    """A tensor, or a number that travels as one.

    Args:
        shape, dtype: of it.
        has_gradient: whether a gradient of it comes back.
        number: the type of what is no tensor: bool, int, float, or that of None.
        value: of a number, which follows from shapes as they do.
        stride: of a tensor; None: it is contiguous.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool = False
    number: type | None = None
    value: float | None = None
    stride: tuple[int, ...] | None = None

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
        return _load_spec, (_dump_tree(self.tree), self.leaves)

    def __str__(self) -> str:
        words = [f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in self.leaves]
        return words[0] if len(words) == 1 else f"({', '.join(words)})"


def flatten(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a value, and how they hang together."""
    return pytree.tree_flatten(tuple(value) if isinstance(value, torch.Size) else value)


def number_of(leaf: Any, kind: type) -> Any:
    """Return the number, or None, that came as a tensor."""
    return None if kind is type(None) else kind(leaf.item())


def _load_spec(tree: Any, leaves: tuple[LeafSpec, ...]) -> ValueSpec:
    return ValueSpec(_load_tree(tree), leaves)


def _dump_tree(tree: pytree.TreeSpec) -> Any:
    """A tree as plain data; torch's own way knows no types that it has not been told the names of."""
    return None if tree.is_leaf() else (tree.type, tree.context, [_dump_tree(each) for each in tree.children()])


def _load_tree(dumped: Any) -> pytree.TreeSpec:
    if dumped is None:
        return pytree.tree_structure(0)
    kind, context, children = dumped
    return pytree.TreeSpec(kind, context, [_load_tree(each) for each in children])


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
        shape, stride = (tuple(int(each) for each in found) for found in (leaf.shape, leaf.stride()))
        return LeafSpec(shape, leaf.dtype, leaf.requires_grad, stride=stride)
    if type(leaf) in NUMBERS:
        return LeafSpec((), NUMBERS[type(leaf)], number=type(leaf), value=leaf)
    raise InvalidModel(
        f"{what} holds a {type(leaf).__name__}; tensors, numbers, and tuples, lists and dictionaries of them cross "
        "between stages"
    )


def blank(spec: ValueSpec) -> Any:
    """Return a value with such leaves, whose content is undefined; tensors are as the device context has it."""
    return pytree.tree_unflatten([_blank_leaf(leaf) for leaf in spec.leaves], spec.tree)


def _blank_leaf(leaf: LeafSpec) -> Any:
    if leaf.number:
        return leaf.value
    if leaf.stride is None:
        return torch.empty(leaf.shape, dtype=leaf.dtype, requires_grad=leaf.has_gradient)
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, requires_grad=leaf.has_gradient)


@dataclass(frozen=True)
class Inferred:
    """What a stage makes of inputs with these specs.

    Args:
        outputs: of it.
        changed: inputs that it writes to, by their places; these have to be copies.
        aliases: pairs of places of values in the same memory: those of inputs, and after them those of outputs.
        updated: buffers that it writes to, by name.
    """

    outputs: tuple[ValueSpec, ...]
    changed: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    updated: tuple[str, ...] = ()


def infer(module: nn.Module, inputs: Sequence[ValueSpec], names: Sequence[str], what: str) -> Inferred:
    """Run a module on tensors without content, and say what comes out. The module stays as it is.

    Args:
        module: returns a tuple.
        inputs: what goes in.
        names: of what comes out, for messages.
        what: the module is called in messages.

    Raises:
        InvalidModel: it cannot be run on such inputs; what comes out depends on their content, or cannot cross between
            stages.
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
        buffers = {name: replaced[name] for name, _ in module.named_buffers()}
        buffers_before = {name: each._version for name, each in buffers.items()}
        try:
            with _unlogged(), OperandTypes():  # type: ignore[no-untyped-call]
                outputs = torch.func.functional_call(module, replaced, tuple(values))
        except HocketError:
            raise
        except Exception as error:  # whatever the code of the model raises
            raise _refusal(what, inputs, error) from error
        changed = tuple(number for number, value in enumerate(values) if _versions(value) != before[number])
        return Inferred(
            tuple(spec_of(each, f"value {name!r}") for name, each in zip(names, outputs, strict=True)),
            changed,
            _aliases([*values, *outputs]),
            tuple(name for name, each in buffers.items() if each._version != buffers_before[name]),
        )


def _aliases(values: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    first: dict[int, int] = {}
    found = set()
    for place, value in enumerate(values):
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                other = first.setdefault(leaf.untyped_storage()._cdata, place)
                if other != place:
                    found.add((other, place))
    return tuple(sorted(found))


def _versions(value: Any) -> list[int]:
    return [leaf._version for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _refusal(what: str, inputs: Sequence[ValueSpec], error: Exception) -> InvalidModel:
    why = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, _DEPENDS_ON_CONTENT):
        return InvalidModel(
            f"{what} cannot be part of a pipeline: what it gives has to follow from the shapes of what it takes alone "
            f"({why})"
        )
    leaves = [leaf for each in inputs for leaf in each.leaves]
    taken = ", ".join(f"{leaf.dtype} {leaf.shape}".removeprefix("torch.") for leaf in leaves)
    return InvalidModel(f"{what} cannot be run on what it takes, {taken} ({why})")


# What fake tensors raise where their content would be asked for.
_DEPENDS_ON_CONTENT = (DataDependentOutputException, DynamicOutputShapeException)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep torch from writing what fake tensors raise to the log as well: it is told in the error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was
