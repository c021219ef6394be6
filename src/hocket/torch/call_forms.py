"""The forms in which programs may call torch's process groups.

torch.distributed calls the methods of a group by position, with an options object at the end; hocket's methods take
this form. Programs that call a group directly may name the parameters, and most operations have a short form with
single tensors, a root, a reduction and a timeout. This file converts both into the first form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

_Group = TypeVar("_Group", bound=type)
_Arguments = tuple[Any, ...]


def _options(kind: type, timeout: timedelta | None, **values: Any) -> Any:
    options = kind()
    if timeout is not None:
        options.timeout = timeout
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _allgather(output_tensors: Any, input_tensor: Any, timeout: timedelta | None = None) -> _Arguments:
    return [output_tensors], [input_tensor], _options(AllgatherOptions, timeout)


def _allreduce(tensors: Any, op: Any = ReduceOp.SUM, timeout: timedelta | None = None) -> _Arguments:
    xs = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return xs, _options(AllreduceOptions, timeout, reduceOp=op)


def _all_to_all(
    output: Any, input: Any, output_split_sizes: Any, input_split_sizes: Any, timeout: timedelta | None = None
) -> _Arguments:
    return output, input, output_split_sizes, input_split_sizes, _options(AllToAllOptions, timeout)


def _barrier(timeout: timedelta | None = None) -> _Arguments:
    return (_options(BarrierOptions, timeout),)


def _broadcast(tensor: Any, root: int, timeout: timedelta | None = None) -> _Arguments:
    return [tensor], _options(BroadcastOptions, timeout, rootRank=root)


def _gather(output_tensors: Any, input_tensor: Any, root: int, timeout: timedelta | None = None) -> _Arguments:
    return [output_tensors], [input_tensor], _options(GatherOptions, timeout, rootRank=root)


def _reduce(tensor: Any, root: int, op: Any = ReduceOp.SUM, timeout: timedelta | None = None) -> _Arguments:
    return [tensor], _options(ReduceOptions, timeout, rootRank=root, reduceOp=op)


def _reduce_scatter(output: Any, input: Any, op: Any = ReduceOp.SUM, timeout: timedelta | None = None) -> _Arguments:
    return [output], [input], _options(ReduceScatterOptions, timeout, reduceOp=op)


def _scatter(output_tensor: Any, input_tensors: Any, root: int, timeout: timedelta | None = None) -> _Arguments:
    return [output_tensor], [input_tensors], _options(ScatterOptions, timeout, rootRank=root)


_SHORT: Mapping[str, Callable[..., _Arguments]] = {
    "all_to_all_single": _all_to_all,
    "allgather": _allgather,
    "allreduce": _allreduce,
    "alltoall_base": _all_to_all,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
_LISTS = ("output_tensors", "input_tensors", "opts")
_PAIR = ("output", "input", "opts")
_HALVES = ("outputTensor", "inputTensor", "opts")
_COALESCED = ("outputs", "inputs", "opts")
_SPLITS = ("output", "input", "output_split_sizes", "input_split_sizes", "opts")
# torch's names of the parameters, in the form with options
_NAMES: Mapping[str, Sequence[str]] = {
    "_allgather_base": _PAIR,
    "_reduce_scatter_base": _HALVES,
    "all_gather_single": _PAIR,
    "all_gather_single_coalesced": _COALESCED,
    "all_to_all_single": _SPLITS,
    "allgather": _LISTS,
    "allgather_coalesced": ("output_lists", "input_list", "opts"),
    "allgather_into_tensor_coalesced": _COALESCED,
    "allreduce": ("tensors", "opts"),
    "allreduce_coalesced": ("tensors", "opts"),
    "alltoall": _LISTS,
    "alltoall_base": _SPLITS,
    "barrier": ("opts",),
    "broadcast": ("tensors", "opts"),
    "gather": _LISTS,
    "recv": ("tensors", "srcRank", "tag"),
    "reduce": ("tensors", "opts"),
    "reduce_scatter": _LISTS,
    "reduce_scatter_single": _HALVES,
    "reduce_scatter_single_coalesced": _COALESCED,
    "reduce_scatter_tensor_coalesced": _COALESCED,
    "scatter": _LISTS,
    "send": ("tensors", "dstRank", "tag"),
}
_OPTIONS = {
    AllgatherOptions, AllreduceCoalescedOptions, AllreduceOptions, AllToAllOptions, BarrierOptions, BroadcastOptions,
    GatherOptions, ReduceOptions, ReduceScatterOptions, ScatterOptions,
}  # fmt: skip
_SHORT_ONLY = {"op", "root", "timeout"}  # parameters that only short forms have


def in_all_forms(group: _Group) -> _Group:
    """Make the operations of a class of groups accept all of torch's forms."""
    for name, names in _NAMES.items():
        setattr(group, name, _in_all_forms(getattr(group, name), name, names))
    return group


def _in_all_forms(own: Callable[..., Any], name: str, names: Sequence[str]) -> Callable[..., Any]:
    short = _SHORT.get(name)
    takes_tensors = names[0] != "tensors" and names is not _LISTS

    @functools.wraps(own)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        if args and type(args[-1]) in _OPTIONS and not named:  # as torch.distributed calls it
            return own(self, *args)
        if short is not None and _is_short(args, named, takes_tensors):
            if "tensor" in named and name == "allreduce":
                named["tensors"] = named.pop("tensor")
            return own(self, *short(*args, **named))
        if named:
            args = _in_order(name, names, args, named)
        return own(self, *args)

    return method


def _is_short(args: Sequence[Any], named: Mapping[str, Any], takes_tensors: bool) -> bool:
    if named and not _SHORT_ONLY.isdisjoint(named):
        return True
    for each in (*args, *named.values()) if named else args:
        if isinstance(each, torch.Tensor):
            if not takes_tensors:
                return True
        elif isinstance(each, (timedelta, int, ReduceOp, ReduceOp.RedOpType)):
            return True
    return False


def _in_order(name: str, names: Sequence[str], args: _Arguments, named: dict[str, Any]) -> _Arguments:
    """Return the arguments by position."""
    ordered = list(args)
    for each in names[len(args) :]:
        if each not in named:
            break
        ordered.append(named.pop(each))
    if named:
        raise TypeError(f"{name}() takes {', '.join(names)}, not {', '.join(named)}")
    return tuple(ordered)
