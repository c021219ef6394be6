"""Reductions that users define: a function of two arrays, under a name.

No library knows the function, so the arrays of all ranks are gathered, and each rank that needs the result reduces them
in rank order. With n ranks this moves n times the bytes; built-in reductions do not gather.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any

from hocket import _native
from hocket.errors import InvalidArgument, InvalidType
from hocket.suggestions import did_you_mean

Function = Callable[[Any, Any], Any]

_functions: dict[str, Function] = {}
_OTHERS_NAMES = {
    "mean": "avg", "average": "avg", "add": "sum", "mul": "prod", "multiply": "prod", "product": "prod",
    "maximum": "max", "minimum": "min", "bitwise_and": "band", "bitwise_or": "bor", "bitwise_xor": "bxor",
    "logical_and": "land", "logical_or": "lor", "logical_xor": "lxor",
}  # fmt: skip
"""Names of hocket's reductions in NumPy, torch and MPI."""


def register_reduction(name: str, function: Function) -> None:
    """Register a function as an ``op`` of all_reduce, reduce, reduce_scatter, reduce_scatterv and scan.

    Args:
        name: the new ``op``. Register the same function under it on all ranks; this is not checked.
        function: an associative function of two arrays of one shape, called as
            ``result = function(result, of_next_rank)``. It must return an array of that shape, and may change its first
            argument. The arrays are torch tensors if the operation is called with tensors, otherwise NumPy arrays.

    Raises:
        InvalidArgument: the name is a built-in ``op``, or another function is registered under it.
        InvalidType: `function` is not callable.

    Examples:
        >>> def longest(result, of_next_rank):
        ...     return np.where(abs(of_next_rank) > abs(result), of_next_rank, result)
        >>> hk.register_reduction("longest", longest)
        >>> x = np.array([1.0, -5.0]) if comm.rank == 0 else np.array([-2.0, 4.0])
        >>> comm.all_reduce(x, "longest")
        >>> x
        array([-2., -5.])
    """
    if not isinstance(name, str) or not name or name in _native.REDUCE_NAMES:
        raise InvalidArgument(f"name must be a str that is not the name of a built-in reduction, not {name!r}")
    if not callable(function):
        raise InvalidType(f"function must be a function of two arrays, not {function!r}")
    if _functions.setdefault(name, function) is not function:
        raise InvalidArgument(f"another function is registered as {name!r}")


def find_function(name: object) -> Function:
    """Return the function registered under a name. Raises InvalidArgument if no function has this name."""
    if isinstance(name, str) and name in _functions:
        return _functions[name]
    names = (*_native.REDUCE_NAMES, *_functions)
    raise InvalidArgument(
        f"op must be one of {', '.join(map(repr, names))}, not {name!r}{suggest_reduction(name, names)}"
    )


def suggest_reduction(op: object, names: Sequence[str]) -> str:
    """Return "; did you mean 'avg'?" for another library's name of a reduction, or an empty text.

    Args:
        op: a name, or an object such as ``numpy.add``, ``torch.distributed.ReduceOp.SUM`` or ``MPI.SUM``.
        names: names of hocket's reductions.
    """
    name = op if isinstance(op, str) else getattr(op, "name", None) or getattr(op, "__name__", None)
    if not isinstance(name, str):
        return ""
    name = name.lower().removeprefix("mpi_").removeprefix("mpi.").removeprefix("reduceop.")
    return did_you_mean(_OTHERS_NAMES.get(name, name), names)


class FoldedWork:
    """The handle of a user-defined reduction in flight: like `Work`, but not accepted in ``deps``."""

    def __init__(self, gathered: _native.Work, fold: Callable[[], None]) -> None:
        self._gathered = gathered
        self._fold: Callable[[], None] | None = fold

    def wait(self, timeout: float | None = None) -> None:
        """Wait as `Work.wait`, then reduce; errors of the function are raised, too."""
        self._gathered.wait(timeout)
        self._finish()

    def test(self) -> bool:
        """Test as `Work.test`; when the arrays have arrived, reduce them and return True."""
        if not self._gathered.test():
            return False
        self._finish()
        return True

    def exception(self) -> BaseException | None:
        return self._gathered.exception()

    @property
    def done(self) -> bool:
        return self._gathered.done and self._fold is None

    def __await__(self) -> Generator[Any]:
        yield from self._gathered.__await__()
        self._finish()

    def _finish(self) -> None:
        fold, self._fold = self._fold, None
        if fold is not None:
            fold()


def reduce_by_function(comm: _native.Communicator, kind: str, *arguments: Any, **options: Any) -> FoldedWork | None:
    """Run the operation `kind` with a registered ``op``, with the arguments of its method."""
    names = {
        "all_reduce": ("x", "op"),
        "reduce": ("x", "root", "op"),
        "scan": ("x", "op"),
        "reduce_scatter": ("out", "x", "op"),
        "reduce_scatterv": ("out", "x", "counts", "op"),
        "all_reduce_coalesced": ("xs", "op"),
    }[kind]
    given = dict(zip(names, arguments, strict=False)) | {name: options.pop(name) for name in names if name in options}
    function = find_function(given["op"])
    if kind == "all_reduce_coalesced":
        known = ", ".join(map(repr, _native.REDUCE_NAMES))
        raise InvalidArgument(
            f"op of {kind} must be one of {known}, not {given['op']!r}: call all_reduce for each array"
        )
    is_async = options.pop("async_op", False)
    x = _as_array("x", given["x"])
    out = _as_array("out", given["out"]) if "out" in given else x
    if kind != "reduce" or given["root"] == comm.rank:
        _check_writable("out" if "out" in given else "x", out)
    rows = _empty_rows(out, comm.size)
    ranks: Sequence[int] = range(comm.size)
    match kind:
        case "all_reduce":
            gathered = comm.all_gather(rows, x, async_op=True, **options)
        case "scan":
            gathered, ranks = comm.all_gather(rows, x, async_op=True, **options), range(comm.rank + 1)
        case "reduce":
            is_root = given["root"] == comm.rank
            gathered = comm.gather(rows if is_root else None, x, given["root"], async_op=True, **options)
            ranks = ranks if is_root else ()
        case "reduce_scatter":
            gathered = comm.all_to_all(rows, x, async_op=True, **options)
        case _:
            counts = list(given["counts"])
            own_counts = [counts[comm.rank]] * comm.size
            gathered = comm.all_to_allv(rows, x, own_counts, counts, async_op=True, **options)

    def fold() -> None:
        if ranks:
            out[...] = functools.reduce(_checked(given["op"], function), [rows[rank] for rank in ranks])

    work = FoldedWork(gathered, fold)
    if is_async:
        return work
    work.wait()
    return None


def _checked(name: str, function: Function) -> Function:
    """Return the function with a check that its result has the shape of its arguments: NumPy would broadcast others."""

    def checked(result: Any, of_next: Any) -> Any:
        shape = tuple(result.shape)
        reduced = function(result, of_next)
        if not hasattr(reduced, "shape") or tuple(reduced.shape) != shape:
            what = f"an array of shape {tuple(reduced.shape)}" if hasattr(reduced, "shape") else repr(reduced)[:80]
            raise InvalidType(f"reduction {name!r} must return an array of its arguments' shape, {shape}, not {what}")
        return reduced

    return checked


def _as_array(argument: str, x: Any) -> Any:
    """Return tensors and NumPy arrays as they are, and other buffers as NumPy arrays of the same memory."""
    if hasattr(x, "new_empty") or hasattr(x, "__array_interface__"):
        return x
    import numpy as np

    try:
        return np.asarray(memoryview(x))
    except TypeError:
        raise InvalidType(
            f"argument {argument}: expected a NumPy array, a torch tensor or an object with the buffer protocol, not "
            f"{type(x).__name__}"
        ) from None


def _check_writable(argument: str, x: Any) -> None:
    if getattr(x, "requires_grad", False):
        raise InvalidArgument(f"argument {argument}: the tensor requires grad; use x.detach()")
    if hasattr(x, "flags") and not x.flags.writeable:
        raise InvalidType(f"argument {argument}: the array is read-only, but the result is written into it")


def _empty_rows(x: Any, size: int) -> Any:
    if hasattr(x, "new_empty"):
        return x.new_empty((size, *x.shape))
    import numpy as np

    return np.empty((size, *x.shape), x.dtype)
