"""Arrays that an operation cannot use: one typed error with the reason, and nothing is sent."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

import hocket as hk
from hocket.errors import InvalidArgument, InvalidType, UnsupportedDtype

from .bad_calls import BadCall, Outcome, bad, find_faults, run_bad_calls

_NUM_RANKS = 2
_KNOWN = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
    "uint16",
    "complex64",
)


def _read_only(count: int = 4) -> np.ndarray:
    x = np.zeros(count)
    x.flags.writeable = False
    return x


def _repeating(count: int = 4) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(np.zeros(1), (count,), (0,), writeable=True)


def _unsupported(dtype: object) -> BadCall:
    return bad(lambda c: c.all_reduce(np.zeros(4, dtype)), UnsupportedDtype, "x", *_KNOWN)  # type: ignore[call-overload]


def _other(c: hk.Communicator) -> int:
    return (c.rank + 1) % c.size


def _overlapping_all_gather(c: hk.Communicator) -> None:
    out = np.zeros((c.size, 8))
    c.all_gather(out, out[_other(c)])


def _shifted_all_gather(c: hk.Communicator) -> None:
    buffer = np.zeros(8 * c.size + 1)
    c.all_gather(buffer[:-1], buffer[8 * c.rank + 1 : 8 * c.rank + 9])


def _overlapping_reduce_scatter(c: hk.Communicator) -> None:
    x = np.zeros((c.size, 8))
    c.reduce_scatter(x[_other(c)], x)


def _overlapping_all_to_all(c: hk.Communicator) -> None:
    x = np.zeros((c.size, 8))
    c.all_to_all(x, x)


def _interleaved_all_to_all(c: hk.Communicator) -> None:
    x = np.zeros(32)
    c.all_to_all(x[4:20], x[:16])


_CALLS = {
    "list": bad(lambda c: c.all_reduce([1.0, 2.0]), InvalidType, "x", "list", "NumPy"),
    "None": bad(lambda c: c.broadcast(None, 0), InvalidType, "x", "NoneType"),
    "number": bad(lambda c: c.send(3.5, 0), InvalidType, "x", "float"),
    "out is a list": bad(lambda c: c.all_gather([0.0] * 2, np.zeros(1)), InvalidType, "out", "list"),
    "NumPy scalar": bad(lambda c: c.all_reduce(np.float32(3)), InvalidType, "x", "numpy.float32", "numpy.array(x)"),
    "big-endian": bad(lambda c: c.all_reduce(np.zeros(4, ">f8")), UnsupportedDtype, "x", "astype('float64')"),
    "bytes": bad(lambda c: c.all_reduce(b"1234"), InvalidType, "x", "read-only"),
    "read-only all_reduce": bad(lambda c: c.all_reduce(_read_only()), InvalidType, "x", "read-only"),
    "read-only reduce": bad(lambda c: c.reduce(_read_only(), c.rank), InvalidType, "x", "read-only"),
    "read-only broadcast": bad(lambda c: c.broadcast(_read_only(), _other(c)), InvalidType, "x", "read-only"),
    "read-only recv": bad(lambda c: c.recv(_read_only(), 0), InvalidType, "x", "read-only"),
    "read-only irecv": bad(lambda c: c.irecv(_read_only(), 0), InvalidType, "x", "read-only"),
    "read-only all_gather": bad(lambda c: c.all_gather(_read_only(8), np.zeros(4)), InvalidType, "out", "read-only"),
    "read-only reduce_scatter": bad(
        lambda c: c.reduce_scatter(_read_only(2), np.zeros(4)), InvalidType, "out", "read-only"
    ),
    "read-only all_to_all": bad(lambda c: c.all_to_all(_read_only(), np.zeros(4)), InvalidType, "out", "read-only"),
    "read-only bfloat16": bad(
        lambda c: c.all_reduce(np.broadcast_to(np.zeros(4, ml_dtypes.bfloat16), (4,))), InvalidType, "x", "read-only"
    ),
    "zero stride all_reduce": bad(lambda c: c.all_reduce(_repeating()), InvalidArgument, "x", "stride", "copy"),
    "zero stride recv": bad(lambda c: c.recv(_repeating(), 0), InvalidArgument, "x", "stride"),
    "zero stride out": bad(lambda c: c.all_gather(_repeating(8), np.zeros(4)), InvalidArgument, "out", "stride"),
    **{
        f"type {name}": _unsupported(dtype)
        for name, dtype in {
            "longdouble": np.longdouble,
            "clongdouble": np.clongdouble,
            "object": object,
            "text": "U4",
            "bytes": "S4",
            "datetime": "M8[s]",
            "structured": [("a", "f4"), ("b", "i4")],
            "big-endian": ">f4",
            "float8": ml_dtypes.float8_e4m3fn,
            "int4": ml_dtypes.int4,
        }.items()
    },
    "type of array.array": bad(lambda c: c.all_reduce(array.array("u", "ab")), UnsupportedDtype, "'w'", *_KNOWN),
    "type of out": bad(lambda c: c.all_gather(np.zeros(8, "g"), np.zeros(4)), UnsupportedDtype, "out"),
    "types differ all_gather": bad(
        lambda c: c.all_gather(np.zeros(8, "f4"), np.zeros(4, "i4")), InvalidArgument, "out", "float32", "x", "int32"
    ),
    "types differ reduce_scatter": bad(
        lambda c: c.reduce_scatter(np.zeros(2), np.zeros(4, "i8")), InvalidArgument, "float64", "int64"
    ),
    "types differ all_to_all": bad(
        lambda c: c.all_to_all(np.zeros(4, "b"), np.zeros(4, "B")), InvalidArgument, "int8", "uint8"
    ),
    "size all_gather": bad(
        lambda c: c.all_gather(np.zeros(7), np.zeros(4)),
        InvalidArgument,
        "all_gather",
        "7",
        "8",
    ),
    "size reduce_scatter": bad(
        lambda c: c.reduce_scatter(np.zeros(4), np.zeros(7)), InvalidArgument, "reduce_scatter", "4", "7"
    ),
    "size all_to_all": bad(lambda c: c.all_to_all(np.zeros(6), np.zeros(4)), InvalidArgument, "all_to_all", "6", "4"),
    "blocks all_to_all": bad(lambda c: c.all_to_all(np.zeros(5), np.zeros(5)), InvalidArgument, "all_to_all", "5", "2"),
    "overlap all_gather": bad(_overlapping_all_gather, InvalidArgument, "all_gather", "overlap", "copy"),
    "overlap all_gather, shifted": bad(_shifted_all_gather, InvalidArgument, "all_gather", "overlap"),
    "overlap reduce_scatter": bad(_overlapping_reduce_scatter, InvalidArgument, "reduce_scatter", "overlap", "copy"),
    "overlap all_to_all": bad(_overlapping_all_to_all, InvalidArgument, "all_to_all", "overlap", "copy"),
    "overlap all_to_all, shifted": bad(_interleaved_all_to_all, InvalidArgument, "all_to_all", "overlap"),
    **{
        f"{op} of {dtype}": bad(
            lambda c, op=op, dtype=dtype: c.all_reduce(np.zeros(4, dtype), op),
            UnsupportedDtype,
            op,
            dtype,
            *has.split(),
        )
        for dtype, ops, has in (
            *(
                (kind, ("avg",), "sum prod min max band bor bxor land lor lxor")
                for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
            ),
            ("bool", ("sum", "prod", "avg"), "min max band bor bxor land lor lxor"),
            ("complex64", ("min", "max", "band", "lor"), "sum prod avg"),
            ("float32", ("band", "bor", "bxor", "land", "lor", "lxor"), "sum prod min max avg"),
        )
        for op in ops
    },
    "reduce: avg of int64": bad(lambda c: c.reduce(np.zeros(4, "i8"), 0, "avg"), UnsupportedDtype, "avg", "int64"),
    "scan: avg": bad(lambda c: c.scan(np.zeros(4), "avg"), InvalidArgument, "scan", "'avg'"),
    "reduce_scatter: sum of bool": bad(
        lambda c: c.reduce_scatter(np.zeros(2, "?"), np.zeros(4, "?")), UnsupportedDtype, "sum", "bool"
    ),
}


def _run(comm: hk.Communicator) -> dict[str, Outcome]:
    return run_bad_calls(comm, _CALLS)


@pytest.fixture(scope="module")
def outcomes() -> list[dict[str, Outcome]]:
    return hk.spawn(_run, _NUM_RANKS, timeout=60)


@pytest.mark.timeout(70)
@pytest.mark.parametrize("name", _CALLS)
def test_bad_array(outcomes: list[dict[str, Outcome]], name: str) -> None:
    assert find_faults(_CALLS[name], [of_rank[name] for of_rank in outcomes]) == []
