"""The real runtime runs the counter-examples: what is legal completes, what is not is refused or reported."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..backends import WITH_COLLECTIVES
from . import counter_examples as examples
from .counter_examples import CounterExample, counter_examples

NUM_ITEMS = 1 << 18  # 1 MiB of float32: every library needs the other side for it
MIXES = list(zip(WITH_COLLECTIVES, WITH_COLLECTIVES[-1:] + WITH_COLLECTIVES[:-1], strict=True))


Plain = tuple[str, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]


def _plain(example: CounterExample) -> Plain:
    return example.name, example.operations, example.scripts, example.deps, example.choices


def _replay(comm: hk.Communicator, mix: tuple[str, str], programs: list[Plain]) -> dict[str, str]:
    """Run the programs one after the other; return by name the class of the error that this rank saw, or "done"."""
    comm.finalize()
    importlib.import_module("torch").set_num_threads(1)
    world = hk.init(backends=["shm", *{*mix} - {"shm"}], timeout=20, progress="caller")
    outcomes = {}
    for name, *program in programs:
        outcomes[name] = _run(world, mix, *program)
        world.barrier(backend="shm")
    return outcomes


def _run(world: hk.Communicator, mix: tuple[str, str], operations: Any, scripts: Any, deps: Any, choices: Any) -> str:
    groups = {members for kind, members, *_ in operations if kind == "collective"}
    communicators = {
        members: world if len(members) == world.size else world.group(members)
        for members in sorted(groups)
        if world.rank in members
    }
    choice, depends = dict(choices[world.rank]), deps[world.rank]
    works: dict[int, hk.Work] = {}
    arrays: dict[int, np.ndarray[Any, Any]] = {}
    error = "done"
    for action, number in scripts[world.rank]:
        kind, *facts = operations[number]
        try:
            if action == "wait":
                works[number].wait()
            elif kind == "collective":
                comm = communicators[facts[0]]
                # Each operation of its own size, so that another order is a mismatch.
                x = arrays[number] = np.full(NUM_ITEMS + number, 1.0, np.float32)
                after = [works[before] for later, before in depends if later == number]
                works[number] = comm.all_reduce(x, backend=mix[choice.get(number, facts[1])], async_op=True, deps=after)
            elif kind == "send":
                works[number] = world.isend(np.full(NUM_ITEMS, 7.0), facts[0], facts[1])
            else:
                arrays[number] = np.zeros(NUM_ITEMS)
                works[number] = world.irecv(arrays[number], facts[0], facts[1])
        except (hk.HocketError, KeyError) as caught:
            error = type(caught).__name__
    waited = {number for action, number in scripts[world.rank] if action == "wait"}
    for number in waited & arrays.keys() if error == "done" else ():
        kind, *facts = operations[number]
        expected = 7.0 if kind == "recv" else len(facts[0])
        assert (arrays[number] == expected).all(), f"operation {number}"
    for communicator in communicators.values():
        if communicator is not world:
            communicator.finalize()
    return error


def _is_expressible(example: CounterExample) -> bool:
    """Dependencies of messages, or on messages, cannot be written down: isend has no deps, and a Work of it is none."""
    collectives = {number for number, (kind, *_) in enumerate(example.operations) if kind == "collective"}
    return all(set(pair) <= collectives for deps in example.deps for pair in deps)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("mix", MIXES, ids="+".join)
def test_legal_programs_complete(num_ranks: int, mix: tuple[str, str]) -> None:
    programs = [
        _plain(each)
        for each in counter_examples()
        if each.legal and each.num_ranks == num_ranks and _is_expressible(each)
    ]
    assert len(programs) > 5
    for outcomes in hk.spawn(_replay, num_ranks, mix, programs, timeout=100):
        assert outcomes == dict.fromkeys((name for name, *_ in programs), "done")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [each for each in examples.NAMES if each.startswith("other") or "choices" in each])
def test_illegal_programs_are_reported(name: str) -> None:
    """Another order, or another lane, is a mismatch on every rank; nobody hangs."""
    (example,) = (each for each in counter_examples() if each.name == name)
    assert not example.legal
    outcomes = hk.spawn(_replay, 2, ("shm", "mpi"), [_plain(example)], timeout=50)
    assert outcomes == [{name: "CollectiveMismatch"}] * 2


@pytest.mark.timeout(60)
def test_forward_dependency_cannot_be_written_down() -> None:
    """A dependency is a Work, and there is none of an operation that was not issued yet."""
    (example,) = (each for each in counter_examples() if each.name == "forward dependency")
    outcomes = hk.spawn(_refuse, 2, timeout=50)
    assert not example.legal and outcomes == [("InvalidArgument", "InvalidType")] * 2


def _refuse(comm: hk.Communicator) -> tuple[str, str]:
    other = comm.dup()
    work = other.barrier(async_op=True)
    errors = []
    for call in (lambda: comm.barrier(deps=[work]), lambda: comm.isend(np.ones(1), 0, deps=[work])):  # type: ignore[call-arg]
        try:
            call()
        except hk.HocketError as error:
            errors.append(type(error).__name__)
    work.wait()
    return tuple(errors)  # type: ignore[return-value]
