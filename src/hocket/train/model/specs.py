"""Specs of values: shapes, types, and whether they have gradients, without content."""

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

# Types that are sent as tensors of these dtypes; the content of the tensor for None has no meaning.
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, type(None): torch.bool}


@dataclass(frozen=True)
class LeafSpec:
    """The spec of a tensor, or of a number that is sent as a tensor.

    Args:
        shape, dtype: shape and type of the tensor.
        has_gradient: whether its gradient is sent back.
        number: type of a leaf that is not a tensor: bool, int, float, or the type of None.
        value: value of a number. It is part of the spec, since it is derived from shapes.
        stride: strides of a tensor; None: it is contiguous.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    has_gradient: bool = False
    number: type | None = None
    value: float | None = None
    stride: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes of the content."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True)
class ValueSpec:
    """The spec of a value, which is a tree of tensors and numbers.

    Args:
        tree: structure of the tree.
        leaves: specs of its leaves.
    """

    tree: pytree.TreeSpec
    leaves: tuple[LeafSpec, ...]

    @property
    def nbytes(self) -> int:
        """Number of bytes of the content of all leaves."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_spec, (_dump_tree(self.tree), self.leaves)

    def __str__(self) -> str:
        words = [f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" for leaf in self.leaves]
        return words[0] if len(words) == 1 else f"({', '.join(words)})"


def flatten(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves of a value, and the structure of its tree."""
    return pytree.tree_flatten(tuple(value) if isinstance(value, torch.Size) else value)


def number_of(leaf: Any, kind: type) -> Any:
    """Return the number, or None, of a received tensor."""
    return None if kind is type(None) else kind(leaf.item())


def _load_spec(tree: Any, leaves: tuple[LeafSpec, ...]) -> ValueSpec:
    return ValueSpec(_load_tree(tree), leaves)


def _dump_tree(tree: pytree.TreeSpec) -> Any:
    """Return the structure of a tree as plain data: torch's own serialisation supports registered types only."""
    return None if tree.is_leaf() else (tree.type, tree.context, [_dump_tree(each) for each in tree.children()])


def _load_tree(dumped: Any) -> pytree.TreeSpec:
    if dumped is None:
        return pytree.tree_structure(0)
    kind, context, children = dumped
    return pytree.TreeSpec(kind, context, [_load_tree(each) for each in children])


def spec_of(value: Any, what: str) -> ValueSpec:
    """Return the spec of a value, which messages call `what`.

    Raises:
        InvalidModel: a leaf is neither a tensor nor a number, and cannot be sent.
    """
    leaves, tree = flatten(value)
    return ValueSpec(tree, tuple(_leaf_spec(leaf, what) for leaf in leaves))


def _leaf_spec(leaf: Any, what: str) -> LeafSpec:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout != torch.strided:
            raise InvalidModel(f"{what} is a {leaf.layout} tensor; tensors between stages must be strided")
        shape, stride = (tuple(int(each) for each in sizes) for sizes in (leaf.shape, leaf.stride()))
        return LeafSpec(shape, leaf.dtype, leaf.requires_grad, stride=stride)
    if type(leaf) in NUMBERS:
        return LeafSpec((), NUMBERS[type(leaf)], number=type(leaf), value=leaf)
    raise InvalidModel(
        f"{what} holds a {type(leaf).__name__}; values between stages must be tensors, numbers, or tuples, lists and "
        "dictionaries of them"
    )


def blank(spec: ValueSpec) -> Any:
    """Return a value with this spec and undefined content; the device context determines the device of tensors."""
    return pytree.tree_unflatten([_blank_leaf(leaf) for leaf in spec.leaves], spec.tree)


def _blank_leaf(leaf: LeafSpec) -> Any:
    if leaf.number:
        return leaf.value
    if leaf.stride is None:
        return torch.empty(leaf.shape, dtype=leaf.dtype, requires_grad=leaf.has_gradient)
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, requires_grad=leaf.has_gradient)


@dataclass(frozen=True)
class Inferred:
    """The effects of a stage on inputs with known specs.

    Args:
        outputs: specs of the outputs.
        changed: indices of the inputs that the stage writes to; it must get copies of these.
        aliases: pairs of indices of values in the same memory; the indices of outputs follow those of inputs.
        updated: names of the buffers that the stage writes to.
    """

    outputs: tuple[ValueSpec, ...]
    changed: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    updated: tuple[str, ...] = ()


def infer(module: nn.Module, inputs: Sequence[ValueSpec], names: Sequence[str], what: str) -> Inferred:
    """Run a module on fake tensors, and return the specs of its outputs. The module stays unchanged.

    Args:
        module: returns a tuple.
        inputs: specs of the inputs.
        names: names of the outputs, for messages.
        what: name of the module in messages.

    Raises:
        InvalidModel: the module cannot be run on such inputs, or its outputs depend on the content of the inputs, or
            cannot be sent between stages.
    """
    state = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():
        fakes: dict[int, torch.Tensor] = {}
        for each in state.values():
            if id(each) not in fakes:
                fakes[id(each)] = mode.from_tensor(each.detach()).requires_grad_(each.requires_grad)
        replaced = {name: fakes[id(each)] for name, each in state.items()}
        # Copies, since a leaf that requires a gradient must not be written to.
        values = [pytree.tree_map_only(torch.Tensor, torch.clone, blank(each)) for each in inputs]
        before = [_versions(value) for value in values]
        buffers = {name: replaced[name] for name, _ in module.named_buffers()}
        buffers_before = {name: each._version for name, each in buffers.items()}
        try:
            with _unlogged(), OperandTypes():  # type: ignore[no-untyped-call]
                outputs = torch.func.functional_call(module, replaced, tuple(values))
        except HocketError:
            raise
        except Exception as error:  # the code of the model may raise anything
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
    pairs = set()
    for place, value in enumerate(values):
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor):
                other = first.setdefault(leaf.untyped_storage()._cdata, place)
                if other != place:
                    pairs.add((other, place))
    return tuple(sorted(pairs))


def _versions(value: Any) -> list[int]:
    return [leaf._version for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _refusal(what: str, inputs: Sequence[ValueSpec], error: Exception) -> InvalidModel:
    why = f"{type(error).__name__}: {first_line(error)}"
    if isinstance(error, _DEPENDS_ON_CONTENT):
        return InvalidModel(
            f"{what} cannot be part of a pipeline: the shapes of its outputs must depend on the shapes of its inputs "
            f"only ({why})"
        )
    leaves = [leaf for each in inputs for leaf in each.leaves]
    shapes = ", ".join(f"{leaf.dtype} {leaf.shape}".removeprefix("torch.") for leaf in leaves)
    return InvalidModel(f"{what} cannot be run on its inputs, {shapes} ({why})")


# Errors of fake tensors whose content is read.
_DEPENDS_ON_CONTENT = (DataDependentOutputException, DynamicOutputShapeException)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep torch from logging the errors of fake tensors, whose text is in the exception."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was
