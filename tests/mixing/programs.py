"""Random programs over several communicators and backends, with results checked by NumPy.

A program is one list of operations, which all ranks issue in the same order. Each rank draws for itself when it waits
for which operations, and where it sleeps.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import hocket as hk
from hocket import _native
from hocket.backends import has_collectives
from hocket.collectives import algorithms

KINDS = (
    "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter",
    "all_gatherv", "reduce_scatterv", "all_to_allv", "gatherv", "scatterv", "scan",
)  # fmt: skip
SCHEDULED = tuple(kind for kind in KINDS if _native.WITH_COUNTS.get(kind, kind) not in ("gather", "scatter"))
DTYPES = ("float32", "float64", "int64", "int32")
MEMORY = ("own", "own", "shared", "mixed")
COUNTS = (0, 1, 3, 64, 1000, 5000, 40_000, 300_000)  # up to above the eager limit of every library


@dataclass(frozen=True)
class Step:
    """One operation.

    Args:
        communicator: index of the communicator.
        backend: name of the backend; None: the policy's choice.
        chained: works in place on the array of the communicator's last all_reduce or broadcast, on any backend; so the
            two must keep their order.
        deps: indices of earlier collectives of this communicator that it must follow.
        algorithm: the schedule that executes it; None: the policy's choice.
        memory: "own": private memory; "shared": memory that the ranks of a host share; "mixed": every second rank has
            the one or the other.
    """

    kind: str
    communicator: int
    backend: str | None
    dtype: str
    count: int
    root: int = 0
    source: int = 0
    tag: int = 0
    chained: bool = False
    deps: tuple[int, ...] = ()
    algorithm: str | None = None
    memory: str = "own"

    def placed(self, comm: hk.Communicator, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the array, or a copy in shared memory."""
        if self.memory == "own" or (self.memory == "mixed" and comm.rank % 2):
            return array
        shared: np.ndarray[Any, Any] = comm.symmetric_like(array)
        return shared


def random_program(seed: int, backends: list[str], communicators: list[list[int]], num_steps: int) -> list[Step]:
    """Draw a program.

    Args:
        seed: seed of all random choices.
        backends: names of backends to choose from.
        communicators: for each communicator its members, as ranks of the world.
        num_steps: number of operations.
    """
    rng = random.Random(seed)
    steps: list[Step] = []
    in_place: dict[int, Step] = {}  # for each communicator its last all_reduce or broadcast
    for _ in range(num_steps):
        communicator = rng.randrange(len(communicators))
        size = len(communicators[communicator])
        backend = rng.choice([*backends, None])
        count = rng.choice(COUNTS)
        dtype = rng.choice(DTYPES)
        if size > 1 and rng.random() < 0.2:
            source, root = rng.sample(range(size), 2)
            memory = rng.choice(MEMORY)
            steps.append(
                Step("message", communicator, backend, dtype, count, root, source, rng.randrange(3), memory=memory)
            )
            continue
        messages_only = backend is not None and not has_collectives(backend)
        kind = rng.choice(SCHEDULED if messages_only else KINDS)
        earlier = [i for i, step in enumerate(steps) if step.communicator == communicator and step.kind != "message"]
        deps = tuple(rng.sample(earlier, min(len(earlier), rng.choice((0, 0, 0, 1, 2)))))
        step = Step(
            kind,
            communicator,
            backend,
            dtype,
            count,
            rng.randrange(size),
            deps=deps,
            algorithm=_draw(rng, kind, size, not messages_only),
            memory=rng.choice(MEMORY),
        )
        if kind in ("all_reduce", "broadcast"):
            last = in_place.get(communicator)
            if last is not None and rng.random() < 0.5:
                step = replace(step, dtype=last.dtype, count=last.count, chained=True)
            in_place[communicator] = step
        steps.append(step)
    return steps


def _draw(rng: random.Random, kind: str, size: int, has_own: bool) -> str | None:
    """Draw a schedule, or the library's own algorithm, for some operations; leave the others to the policy."""
    if rng.random() < 0.5:
        return None
    own = ("native",) if has_own else ()
    if kind == "all_to_allv":  # other schedules route through ranks that do not know the sizes
        return rng.choice(("pairwise", "windowed(window=2)", *own))
    found = algorithms(_native.WITH_COUNTS.get(kind, kind))
    names = [each.name for each in found if each.restriction(size) is None]
    if size % 2 == 0 and "hierarchical" in names:
        names.append("hierarchical(ranks_per_host=2)")
    return rng.choice([*names, *own])


@dataclass
class Mirror:
    """The in-place array of a communicator, and its value on each member after all issued operations."""

    array: np.ndarray[Any, Any]
    expected: list[np.ndarray[Any, Any]]


@dataclass
class Runner:
    """Runs programs on one rank.

    Args:
        communicators: the communicators of this rank; None if it is not a member.
        members: members of all communicators.
        rank: rank of this process in the world.
    """

    communicators: list[hk.Communicator | None]
    members: list[list[int]]
    rank: int

    def run(self, steps: list[Step], seed: int) -> None:
        """Run a program and raise AssertionError if a result is wrong."""
        own = random.Random(f"{seed} {self.rank}")
        works: dict[int, hk.Work] = {}
        waiting: list[int] = []
        checks: list[tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        mirrors: dict[int, Mirror] = {}
        arrays: list[Any] = []
        for number, step in enumerate(steps):
            comm = self.communicators[step.communicator]
            if comm is not None:
                data = np.random.default_rng([seed, number])
                work = self._issue(number, step, comm, data, works, checks, mirrors, arrays)
                if work is not None:
                    works[number] = work
                    waiting.append(number)
            if own.random() < 0.03:
                time.sleep(own.random() * 0.003)
            while waiting and own.random() < 0.3:
                self._wait(own, works, waiting)
        while waiting:
            self._wait(own, works, waiting)
        for number, got, expected in checks:
            np.testing.assert_array_equal(got, expected, err_msg=f"seed {seed}, step {number}: {steps[number]}")
        for communicator, mirror in mirrors.items():
            comm = self.communicators[communicator]
            assert comm is not None
            np.testing.assert_array_equal(
                mirror.array, mirror.expected[comm.rank], err_msg=f"seed {seed}, chain of communicator {communicator}"
            )

    @staticmethod
    def _wait(own: random.Random, works: dict[int, hk.Work], waiting: list[int]) -> None:
        number = waiting.pop(own.randrange(len(waiting)))
        if own.random() < 0.2:
            works[number].test()
        works[number].wait()
        if own.random() < 0.1:
            works[number].wait()  # a second time

    def _issue(
        self,
        number: int,
        step: Step,
        comm: hk.Communicator,
        data: np.random.Generator,
        works: dict[int, hk.Work],
        checks: list[tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]],
        mirrors: dict[int, Mirror],
        arrays: list[Any],
    ) -> hk.Work | None:
        size, rank = comm.size, comm.rank
        if step.kind == "message":
            given = data.integers(-50, 50, step.count).astype(step.dtype)
            if rank == step.source:
                sent = step.placed(comm, given)
                arrays.append(sent)
                return comm.isend(sent, step.root, step.tag, backend=step.backend)
            if rank == step.root:
                out = step.placed(comm, np.zeros_like(given))
                checks.append((number, out, given))
                return comm.irecv(out, step.source, step.tag, backend=step.backend)
            return None
        how: dict[str, Any] = {
            "backend": step.backend,
            "async_op": True,
            "deps": [works[each] for each in step.deps if each in works],
            "algorithm": step.algorithm,
        }
        if step.kind == "barrier":
            return comm.barrier(**how)
        if step.kind in _native.WITH_COUNTS:
            return self._issue_with_counts(number, step, comm, data, how, checks, arrays)
        blocks = size if step.kind in ("reduce_scatter", "all_to_all", "scatter") else 1
        given = [data.integers(-50, 50, blocks * step.count).astype(step.dtype) for _ in range(size)]
        if step.kind in ("all_reduce", "broadcast"):
            mirror = mirrors.get(step.communicator)
            if mirror is None or not step.chained:
                if mirror is not None:  # no operation uses it any longer
                    checks.append((number, mirror.array, mirror.expected[rank]))
                mirror = mirrors[step.communicator] = Mirror(step.placed(comm, given[rank].copy()), given)
            if step.kind == "broadcast":
                mirror.expected = [mirror.expected[step.root]] * size
                return comm.broadcast(mirror.array, step.root, **how)
            # max keeps the numbers exact in a chain of any length
            mirror.expected = [np.max(mirror.expected, axis=0)] * size
            return comm.all_reduce(mirror.array, "max", **how)
        x = step.placed(comm, given[rank].copy())
        arrays.append(x)
        total = np.sum(given, axis=0).astype(step.dtype)
        if step.kind == "reduce":
            checks.append((number, x, total if rank == step.root else given[rank]))
            return comm.reduce(x, step.root, **how)
        if step.kind == "scan":
            checks.append((number, x, np.sum(given[: rank + 1], axis=0).astype(step.dtype)))
            return comm.scan(x, **how)
        if step.kind == "all_gather":
            out = step.placed(comm, np.empty(size * step.count, step.dtype))
            checks.append((number, out, np.concatenate(given)))
            return comm.all_gather(out, x, **how)
        if step.kind == "gather":
            out = step.placed(comm, np.empty(size * step.count, step.dtype)) if rank == step.root else None
            if out is not None:
                checks.append((number, out, np.concatenate(given)))
            return comm.gather(out, x, step.root, **how)
        mine = slice(rank * step.count, (rank + 1) * step.count)
        if step.kind == "scatter":
            out = step.placed(comm, np.empty(step.count, step.dtype))
            checks.append((number, out, given[step.root][mine]))
            return comm.scatter(out, x if rank == step.root else None, step.root, **how)
        out = step.placed(comm, np.empty(step.count * (1 if step.kind == "reduce_scatter" else size), step.dtype))
        if step.kind == "reduce_scatter":
            checks.append((number, out, total[mine]))
            return comm.reduce_scatter(out, x, **how)
        checks.append((number, out, np.concatenate([each[mine] for each in given])))
        return comm.all_to_all(out, x, **how)

    @staticmethod
    def _issue_with_counts(
        number: int,
        step: Step,
        comm: hk.Communicator,
        data: np.random.Generator,
        how: dict[str, Any],
        checks: list[tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]],
        arrays: list[Any],
    ) -> hk.Work:
        """Blocks of up to `step.count` items; row r of the matrix has the sizes that rank r sends to each rank."""
        size, rank, is_root = comm.size, comm.rank, comm.rank == step.root
        matrix = data.integers(0, step.count + 1, (size, size)) * data.integers(0, 2, (size, size))
        counts = matrix[0]
        sent = matrix.sum(1) if step.kind == "all_to_allv" else [counts.sum()] * size
        if step.kind in ("gatherv", "all_gatherv"):
            sent = list(counts)
        given = [data.integers(-50, 50, each).astype(step.dtype) for each in sent]
        x = step.placed(comm, given[rank].copy())
        ends = np.concatenate([np.zeros((size, 1), int), matrix.cumsum(1)], 1)
        row = 0 if step.kind != "all_to_allv" else None
        to_me = [given[each][slice(*ends[each if row is None else row][rank : rank + 2])] for each in range(size)]
        arrays.append(x)
        match step.kind:
            case "all_to_allv":
                expected = np.concatenate(to_me)
            case "gatherv" | "all_gatherv":
                expected = np.concatenate(given)
            case "scatterv":
                expected = to_me[step.root]
            case _:
                expected = np.sum(to_me, axis=0).astype(step.dtype)
        out = step.placed(comm, np.empty(expected.size, step.dtype))
        if step.kind != "gatherv" or is_root:
            checks.append((number, out, expected))
        match step.kind:
            case "all_to_allv":
                return comm.all_to_allv(out, x, list(matrix[:, rank]), list(matrix[rank]), **how)
            case "all_gatherv":
                return comm.all_gatherv(out, x, list(counts), **how)
            case "gatherv":
                return comm.gatherv(out if is_root else None, x, list(counts), step.root, **how)
            case "scatterv":
                return comm.scatterv(out, x if is_root else None, list(counts), step.root, **how)
            case _:
                return comm.reduce_scatterv(out, x, list(counts), **how)


def make_communicators(world: hk.Communicator) -> tuple[list[hk.Communicator | None], list[list[int]]]:
    """Make the world, a dup of it, and with three or more ranks all pairs of neighbours, which overlap."""
    all_ranks = list(range(world.size))
    members = [all_ranks, all_ranks]
    communicators: list[hk.Communicator | None] = [world, world.dup()]
    if world.size > 2:
        for first in range(world.size - 1):
            pair = [first, first + 1]
            members.append(pair)
            communicators.append(world.group(pair) if world.rank in pair else None)
    return communicators, members
