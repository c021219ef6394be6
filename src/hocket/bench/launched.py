"""Measure points between ranks that a launcher has already started, on one host or several."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import numpy as np

from hocket.backends import quickest
from hocket.bench.measuring import OnResults, PointsMeasurement, Request, measure_points
from hocket.bench.rank import contenders_of, look, open_drivers, open_world, prepare_all, raise_wrong
from hocket.boot.joining import host_identity
from hocket.comm import Communicator, Policy
from hocket.errors import InvalidArgument
from hocket.measure import Key, Team
from hocket.measure.rounds import OnRound
from hocket.measure.shared_clock import SharedClock
from hocket.measure.team import gather_over
from hocket.reserved_port import ReservedPort
from hocket.session import init

_TIMEOUT_S = 120.0
_TAG = 1


def measure_launched(request: Request, on_round: OnRound | None, on_results: OnResults | None) -> PointsMeasurement:
    """Measure points between all ranks of this job; all ranks call it.

    Raises:
        InvalidArgument: none of the points can be measured here.
        WrongResult: an operation gives a wrong result on some rank; raised on all ranks.
    """
    with ExitStack() as stack:
        world = open_world(request.targets) or init(timeout=_TIMEOUT_S)
        stack.callback(world.finalize)
        with ReservedPort() as port:  # reserved until torch's store listens on it
            _set_torch_variables(world, port.number)
            drivers = open_drivers(request.targets, world)
        for driver in drivers.values():
            stack.callback(driver.finalize)
        prepared, left_out = prepare_all(request.points, drivers, request.num_warm_up)
        if not prepared:
            raise InvalidArgument("; ".join(dict.fromkeys(reason for _, reason in left_out)))
        by_key = {point.key: each for point, each in prepared.items()}

        clock, control = _make_clock(world)
        gather = gather_over(control.all_gather, control.size)

        def check(key: Key, turn: int) -> None:
            raise_wrong(control.all_gather_object(look(by_key[key], turn)))

        team = Team(contenders_of(prepared), world.rank, control.barrier, gather, clock=clock, settle=clock.settle)
        series = measure_points(team, request, check, on_round, on_results)
        warning = f"clocks of different hosts agree to within {1e6 * clock.error_s:.1f} us"
        return PointsMeasurement(series, left_out=left_out, warnings=[warning] if clock.error_s else [])


def _make_clock(world: Communicator) -> tuple[SharedClock, Communicator]:
    """Return the shared clock of all ranks, and the communicator that coordinates the measurement."""
    control = world.dup()
    control.policy = Policy.fixed({"*": quickest(control.backends, control.num_hosts)})

    def send(value: float, peer: int) -> None:
        control.send(np.array([value]), peer, _TAG)

    def recv(peer: int) -> float:
        value = np.empty(1)
        control.recv(value, peer, _TAG)
        return float(value[0])

    hosts = [str(each) for each in control.all_gather_object(host_identity())]
    return SharedClock(world.rank, hosts, send, recv, gather_over(control.all_gather, control.size)), control


def _set_torch_variables(world: Communicator, free_port: int) -> None:
    """Set the environment variables that torch.distributed needs, unless the launcher has set them."""
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return
    root_address = None
    if world.rank == 0:
        root_address = (socket.gethostname() if world.num_hosts > 1 else "127.0.0.1", str(free_port))
    address, port = world.broadcast_object(root_address, 0)
    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.size), MASTER_ADDR=address, MASTER_PORT=port)
