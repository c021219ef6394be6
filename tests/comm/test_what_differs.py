"""Errors of ranks that disagree name the difference, and the value on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hocket as hk
from hocket import _native
from hocket.sim import Link

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)

f32 = np.float32
Call = Callable[[hk.Communicator, int], Any]
CALLS: dict[str, tuple[Call, tuple[str, ...], tuple[str, ...]]] = {
    # the calls of both ranks, the difference, and other values in the error
    "size": (lambda c, r: c.all_reduce(np.ones((4, 3 + r), f32)), ("size",), ("(4, 3)", "(4, 4)", "48", "64")),
    "a vector": (lambda c, r: c.all_reduce(np.ones(3 + r, f32)), ("size",), ("(3,)", "(4,)")),
    "a number": (lambda c, r: c.all_reduce(np.ones((2,) * r, f32)), ("size",), ("()", "(2,)")),
    "type": (lambda c, r: c.all_reduce(np.ones(6 - 3 * r, f32 if r == 0 else "f8")), ("type",), ("float32", "float64")),
    "type and size": (
        lambda c, r: c.all_reduce(np.ones((2, 2), f32 if r else "f8")),
        ("type", "size"),
        ("(2, 2)", "16", "32"),
    ),
    "tensors": (lambda c, r: c.all_reduce(torch.ones(2, 3 + r)), ("size",), ("(2, 3)", "(2, 4)")),
    "strided": (lambda c, r: c.all_reduce(np.ones((4, 6), f32)[:, : 2 + r]), ("size",), ("(4, 2)", "(4, 3)")),
    "memory": (lambda c, r: c.all_reduce(bytearray(8 + r), "max"), ("size",), ("(8,)", "(9,)")),
    "reduction": (lambda c, r: c.all_reduce(np.ones(4), "max" if r else "sum"), ("reduction",), ("max", "sum")),
    "root": (lambda c, r: c.broadcast(np.ones(4), r), ("root",), ("root 0", "root 1")),
    "operation": (
        lambda c, r: c.barrier() if r else c.all_reduce(np.ones(4)),
        ("operation",),
        ("barrier", "all_reduce"),
    ),
    "blocks": (lambda c, r: c.all_gather(np.ones((2, 3 + r)), np.ones(3 + r)), ("size",), ("(3,)", "(4,)")),
    "counts": (
        lambda c, r: c.all_gatherv(np.ones(5), np.ones(2 + r), [2, 3] if r else [3, 2]),
        ("counts",),
        (),
    ),
}
ALL = ("operation", "reduction", "type", "size", "root", "counts", "algorithm", "library", "content")


def _call(comm: hk.Communicator, name: str) -> str:
    try:
        CALLS[name][0](comm, comm.rank)
    except hk.CollectiveMismatch as error:
        return str(error)
    except hk.InvalidArgument as error:  # an error that one rank finds by itself
        return f"InvalidArgument {error}"
    return "nothing"


def assert_differs(text: str, name: str) -> None:
    _, differing, named = CALLS[name]
    head = text.partition("rank 0:")[0]
    assert [each for each in ALL if f"the {each}" in head] == sorted(differing, key=ALL.index)
    assert_names(text, *named)


@pytest.mark.parametrize("name", [each for each in CALLS if each != "counts"])
def test_an_error_says_what_differs_and_what_each_rank_gave(name: str) -> None:
    for text in hk.spawn(_call, 2, name, timeout=50):
        assert_differs(text, name)


@pytest.mark.parametrize("name", ["size", "root", "operation"])
def test_virtual_ranks_say_it_too(name: str) -> None:
    def program(comm: hk.Communicator) -> None:
        with pytest.raises(hk.CollectiveMismatch) as caught:
            CALLS[name][0](comm, comm.rank)
        assert_differs(str(caught.value), name)

    hk.simulate(program, 2, fabric=Link.of(2.0, 12.5))


@pytest.mark.parametrize(
    ("calls", "differing"),
    [
        (["operation=a\nsize=8", "operation=a\nsize=9"], ["size"]),
        (["operation=a\nsize=8", "operation=b"], ["operation"]),
        (["operation=a\ntype=x\nsize=1\nroot=0", "operation=a\ntype=y\nsize=2\nroot=1"], ["type", "size", "root"]),
        (["operation=a", "operation=a\nalgorithm=ring"], ["algorithm"]),
        (["operation=a", "operation=a"], []),
        ([], []),
        (["", "=", "\n\n", "no equals sign"], None),  # another rank may send anything
    ],
)
def test_the_head_of_a_mismatch(calls: list[str], differing: list[str] | None) -> None:
    head = _native.mismatch_head(7, calls)
    assert head.startswith("operation number 7: ")
    if differing is not None:
        assert [each for each in ALL if f"the {each}" in head] == sorted(differing, key=ALL.index)


def _receive(comm: hk.Communicator, what: str) -> str:
    x = np.ones(3)
    try:
        if comm.rank == 1:
            comm.send(x, 0, tag=4)
            comm.send(x, 0, tag=6)
            if what == "timeout":
                comm.barrier()
        elif what == "itself":
            comm.recv(x, 0, timeout=0.3)
        else:
            comm.recv(x, 1, tag=5, timeout=0.5 if what == "timeout" else 30)
    except hk.HocketError as error:
        return f"{type(error).__name__} {error}"
    return ""


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("timeout", ("CommTimeout", "tag 5", "4, 6")),
        ("left", ("PeerFailure", "rank 1", "4, 6")),
        ("itself", ("CommTimeout", "isend")),
    ],
)
def test_a_receive_that_nothing_fits_names_the_tags_that_came(what: str, names: tuple[str, ...]) -> None:
    assert_names(hk.spawn(_receive, 2, what, timeout=50)[0], *names)


def _suggest(comm: hk.Communicator) -> list[str]:
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(np.ones(3), "mean"),
        lambda: comm.all_reduce(np.ones(3), np.add),  # type: ignore[arg-type]
        lambda: comm.all_reduce(np.ones(3), np.maximum),  # type: ignore[arg-type]
        lambda: comm.all_reduce(torch.ones(3), torch.distributed.ReduceOp.PRODUCT),  # type: ignore[arg-type]
        lambda: comm.all_reduce_object(3, "mean"),
        lambda: comm.all_reduce(np.ones(3), backend="SHM"),
        lambda: comm.prepare("allreduce", np.ones(3)),
        lambda: comm.explain("allreduce", nbytes=3),
    ]
    seen = []
    for call in calls:
        try:
            call()
        except hk.HocketError as error:
            seen.append(str(error).partition("did you mean")[2])
    return seen


def test_names_of_other_libraries_are_understood() -> None:
    (seen,) = hk.spawn(_suggest, 1, timeout=50)
    meant = ["avg", "sum", "max", "prod", "avg", "shm", "all_reduce", "all_reduce"]
    assert [each.strip(" '?") for each in seen] == meant
