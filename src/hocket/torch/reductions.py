"""hocket's names of torch's reductions."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hocket.errors import UnsupportedDtype

_NAMES = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}
_OF_BOOL = {"sum": "lor", "prod": "land"}  # torch sums and multiplies bool as 0 and 1, limited to 1


def reduction_of(opts: Any, dtype: torch.dtype) -> str:
    """Return hocket's name of the reduction in torch's options, for tensors of a type.

    Raises:
        UnsupportedDtype: hocket has no such reduction.
    """
    name = _NAMES.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    if name is None:
        raise UnsupportedDtype(f"{opts.reduceOp} is not supported; use one of {', '.join(_NAMES.values())}")
    return _OF_BOOL.get(name, name) if dtype == torch.bool else name
