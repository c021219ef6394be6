"""Other arrays than NumPy's: torch tensors, bytearray, array.array, memoryview, ctypes arrays."""

from __future__ import annotations

import array
import ctypes
import warnings

import ml_dtypes
import numpy as np
import pytest

import hocket as hk

from .arrays import Holder, Layout, run_all_operations
from .data import DTYPES, Array

_Made = tuple[Holder, Array, Array]


def _view(tensor: Holder, dtype: np.dtype) -> Array:
    """NumPy's view of a tensor's items; for bfloat16, which torch does not convert to NumPy, through its bits."""
    import torch

    if dtype == np.dtype(ml_dtypes.bfloat16):
        return tensor.view(torch.int16).numpy().view(dtype)
    return tensor.numpy()


def _tensor(shape: tuple[int, ...], dtype: np.dtype, fill: int = 1) -> Holder:
    import torch

    return torch.full(shape, fill, dtype=getattr(torch, dtype.name))


def _contiguous(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    x = _tensor(shape, dtype)
    return x, _view(x, dtype), _view(x, dtype)


def _transposed(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    memory = _tensor(shape[::-1], dtype)
    x = memory.permute(list(reversed(range(len(shape)))))
    return x, _view(x, dtype), _view(memory, dtype)


def _stepped(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    memory = _tensor(tuple(2 * extent for extent in shape), dtype)
    x = memory[tuple(slice(1, None, 2) for _ in shape)]
    return x, _view(x, dtype), _view(memory, dtype)


def _parameter(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    import torch

    x = _tensor(shape, dtype)
    return torch.nn.Parameter(x, requires_grad=False), _view(x, dtype), _view(x, dtype)


def _run_tensors(comm: hk.Communicator) -> None:
    for dtype in DTYPES.values():
        for shape in ((), (1,), (5, 3), (0, 2), (60, 40)):
            for layout in (_contiguous, _transposed, _stepped, _parameter):
                run_all_operations(comm, dtype, shape, layout, f"torch {layout.__name__}")


@pytest.mark.timeout(90)
def test_torch_tensors() -> None:
    hk.spawn(_run_tensors, 2, timeout=80)


def _run_torch_facts(comm: hk.Communicator) -> None:
    import torch

    x = torch.ones(4)
    version = x._version
    comm.all_reduce(x)
    assert x._version > version, "the tensor was written without a mark for autograd"
    sent = torch.ones(4)
    version = sent._version
    out = torch.zeros(comm.size, 4)
    comm.all_gather(out, sent)
    assert sent._version == version
    comm.all_gather(out, torch.ones(1).expand(4))
    assert out.tolist() == [[1.0] * 4] * comm.size
    with torch.inference_mode():
        y = torch.full((3,), comm.rank + 1.0)
        comm.all_reduce(y)
        assert y.tolist() == [comm.size * (comm.size + 1) / 2] * 3
    with torch.no_grad():
        z = torch.ones(2, requires_grad=True)
        comm.all_reduce(z)
        assert z.tolist() == [comm.size] * 2
    # One rank may pass a tensor and the other an array: only type and bytes matter.
    mixed = torch.ones(3) if comm.rank else np.ones(3, np.float32)
    comm.all_reduce(mixed)
    assert list(mixed) == [comm.size] * 3


@pytest.mark.timeout(60)
def test_what_torch_expects() -> None:
    hk.spawn(_run_torch_facts, 2, timeout=50)


def _array_of(code: str) -> Layout:
    def make(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
        x = array.array(code, bytes(int(np.prod(shape)) * dtype.itemsize))
        view = np.frombuffer(x, dtype).reshape(shape) if len(x) else np.zeros(shape, dtype)
        return x, view, view

    return make


def _bytearray(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    x = bytearray(int(np.prod(shape)))
    view = np.frombuffer(x, dtype).reshape(shape) if x else np.zeros(shape, dtype)
    return x, view, view


def _memoryview(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    base = np.ones(shape, dtype)
    return memoryview(base), base, base


def _ctypes_array(shape: tuple[int, ...], dtype: np.dtype) -> _Made:
    kinds = {"int32": ctypes.c_int32, "float64": ctypes.c_double, "int64": ctypes.c_int64, "bool": ctypes.c_bool}
    x = (kinds[dtype.name] * int(np.prod(shape)))()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view = np.frombuffer(x, dtype).reshape(shape) if len(x) else np.zeros(shape, dtype)
    return x, view, view


def _run_buffers(comm: hk.Communicator) -> None:
    codes = {"f": "float32", "d": "float64", "b": "int8", "h": "int16", "i": "int32", "l": "int64", "q": "int64",
             "B": "uint8"}  # fmt: skip
    for shape in ((1,), (5,), (2_000,), (0,)):
        for code, dtype in codes.items():
            run_all_operations(comm, DTYPES[dtype], shape, _array_of(code), f"array.array {code!r}")
        run_all_operations(comm, DTYPES["uint8"], shape, _bytearray, "bytearray")
        for dtype in ("int32", "float64", "int64", "bool"):
            run_all_operations(comm, DTYPES[dtype], shape, _ctypes_array, "ctypes")
        for dtype in DTYPES:
            if dtype != "bfloat16":  # Python's buffers do not know it
                run_all_operations(comm, DTYPES[dtype], shape, _memoryview, "memoryview")
    x = np.arange(10) + comm.rank
    comm.all_reduce(memoryview(x)[::-3])
    assert x.tolist() == [2 * i + 1 if i % 3 == 0 else i + comm.rank for i in range(10)]


@pytest.mark.timeout(60)
def test_other_buffers() -> None:
    hk.spawn(_run_buffers, 2, timeout=50)
