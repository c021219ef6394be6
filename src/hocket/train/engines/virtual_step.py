"""A step of an engine on virtual ranks: what `hocket.simulate` runs for numbers of ranks that are not there.

Engines run as they are. Servers are processes that no virtual rank can start; there a virtual rank has the place of a
server, with a connection of its own, and takes and sends the messages that the engine would.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.errors import InvalidArgument
from hocket.train.engines.engine import TensorSpec
from hocket.train.engines.parameter_server import ParameterServer
from hocket.train.engines.registry import EngineChoice
from hocket.train.engines.servers.shards import ParcelPlan

_TIMEOUT_S = 1e6
_NUM_POLLS = 200
"""How often in a step a virtual rank does what a thread would do beside its computation."""


def servers_of(choice: EngineChoice) -> int:
    """Return the number of servers of an engine."""
    if choice.check(exact=False) is not ParameterServer:
        return 0
    return int(_option(choice, "num_servers"))


def virtual_step(
    world: Communicator,
    choice: EngineChoice,
    tensors: Sequence[TensorSpec],
    compute_s: float = 0.0,
    server_s_per_byte: float = 0.0,
) -> float:
    """Return the seconds of a step on the clock of a virtual rank; called by all of them.

    Args:
        world: a communicator of all virtual ranks, which move no data; the last ones are servers (`servers_of`).
        choice: an engine that sums. Its option `backend` has no meaning here.
        tensors: the gradients.
        compute_s: seconds of computation in a step, spread over the gradients by size.
        server_s_per_byte: seconds that a server works for each byte that comes or goes.

    Raises:
        InvalidArgument: the engine changes the parameters itself; or as the engine does.

    Examples:
        >>> import torch
        >>> from hocket.train.engines.virtual_step import virtual_step
        >>> tensors = [hk.train.TensorSpec("weight", (1000, 1000), torch.float32)]
        >>> choice = hk.train.EngineChoice("ring")
        >>> link = hk.sim.Link(alpha_s=0.0, beta_s=1e-9)  # 1 GB/s
        >>> run = hk.simulate(virtual_step, 4, choice, tensors, fabric=link, moves_data=False)
        >>> round(1e3 * run.seconds, 3)  # 4 MB: 2 (P - 1) / P times their milliseconds
        6.0
    """
    if choice.updates:
        raise InvalidArgument(f"engine {choice.name!r} changes the parameters itself, and has no sums to simulate")
    whole = sum(each.numel for each in tensors)
    compute = [compute_s * each.numel / whole for each in tensors]
    num_servers = servers_of(choice)
    if not num_servers:
        return _by_engine(world, choice, tensors, compute)
    plan = ParcelPlan(tensors, num_servers, int(_option(choice, "message_nbytes")), cuts=True)
    num_ranks = world.size - num_servers
    world.barrier()
    begin_s = world.wtime()
    if world.rank < num_ranks:
        _send_and_receive(world, plan, num_ranks, compute)
    else:
        _serve(world, plan, num_ranks, server_s_per_byte)
    return world.wtime() - begin_s


def _option(choice: EngineChoice, name: str) -> Any:
    return choice.options.get(name, inspect.signature(ParameterServer).parameters[name].default)


def _by_engine(
    world: Communicator, choice: EngineChoice, tensors: Sequence[TensorSpec], compute: Sequence[float]
) -> float:
    options = {name: value for name, value in choice.options.items() if name != "backend"}
    engine = EngineChoice(choice.name, options).make(world, tensors, exact=False, timeout_s=_TIMEOUT_S)
    gradients = [_scratch(each.numel, each.dtype) for each in tensors]
    world.barrier()
    begin_s = world.wtime()
    slice_s = sum(compute) / _NUM_POLLS
    for number in reversed(range(len(tensors))):
        num_slices = max(round(compute[number] / slice_s), 1) if slice_s else 0
        for _ in range(num_slices):
            world.compute(compute[number] / num_slices)
            engine.poll()
        engine.start(number, gradients[number])
    engine.finish()
    seconds = world.wtime() - begin_s
    engine.close()
    return seconds


@lru_cache
def _scratch(numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that all virtual ranks share: nobody reads or changes it."""
    return torch.empty(numel, dtype=dtype)


def _message(plan: ParcelPlan, place: int) -> torch.Tensor:
    return _scratch(plan.numel(place), plan.dtype(place))


def _send_and_receive(world: Communicator, plan: ParcelPlan, num_ranks: int, compute: Sequence[float]) -> None:
    """Be a rank: send each message as soon as its pieces are there, and wait for all sums."""
    missing = [len(parcel.pieces) for parcel in plan.parcels]
    works = []
    for number in reversed(range(len(compute))):
        world.compute(compute[number])
        for place in plan.of_tensor[number]:
            missing[place] -= 1
            if not missing[place]:
                server = num_ranks + plan.parcels[place].server
                works.append(world.isend(_message(plan, place), server, tag=place))
                works.append(world.irecv(_message(plan, place), server, tag=place))
    for work in works:
        work.wait(timeout=_TIMEOUT_S)


def _serve(world: Communicator, plan: ParcelPlan, num_ranks: int, s_per_byte: float) -> None:
    """Be a server: add what comes, and answer all ranks when a sum is complete."""
    server = world.rank - num_ranks
    coming: deque[tuple[int, list[Any]]] = deque()
    for place, parcel in enumerate(plan.parcels):
        if parcel.server == server:
            message = _message(plan, place)
            coming.append((place, [world.irecv(message, rank, tag=place) for rank in range(num_ranks)]))
    answers = []
    while coming:
        # Whichever sum is complete first; if none is, time passes until the oldest one is.
        number = next((at for at, (_, works) in enumerate(coming) if all(work.test() for work in works)), 0)
        place, works = coming[number]
        del coming[number]
        nbytes = plan.numel(place) * plan.dtype(place).itemsize
        for work in works:
            work.wait(timeout=_TIMEOUT_S)
            world.compute(nbytes * s_per_byte)
        for rank in range(num_ranks):
            world.compute(nbytes * s_per_byte)
            answers.append(world.isend(_message(plan, place), rank, tag=place))
    for work in answers:
        work.wait(timeout=_TIMEOUT_S)
