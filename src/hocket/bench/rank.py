"""One rank of a job of benchmarks: ``python -m hocket.bench.rank SPECIFICATION``, in JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from hocket.bench.buffers.registry import find_kind
from hocket.bench.drivers.base import Driver
from hocket.bench.drivers.faulty import FaultyDriver
from hocket.bench.drivers.hocket import MIX, HocketDriver
from hocket.bench.point import Point
from hocket.bench.registry import Prepared, Setting, find_benchmark
from hocket.bench.targets import Target
from hocket.comm import Communicator
from hocket.errors import WrongResult
from hocket.measure import Contender, Key, serve
from hocket.session import init


def specification(points: Sequence[Point], targets: Sequence[Target], num_warm_up: int = 0) -> str:
    """Return the JSON argument of a rank: the points, their libraries, and the number of warm-up iterations."""
    own = {each.name for each in targets}
    return json.dumps(
        {
            "targets": [asdict(each) for each in targets],
            "num_warm_up": num_warm_up,
            "points": [asdict(each) for each in points if each.target in own],
        }
    )


def main(text: str) -> None:
    """Set all benchmarks up, check every result once, and serve the coordinator."""
    given = json.loads(text)
    points = [Point(**each) for each in given["points"]]
    with opened([Target(**each) for each in given["targets"]]) as drivers:
        prepared, left_out = prepare_all(points, drivers, given["num_warm_up"])
        by_key = {point.key: each for point, each in prepared.items()}
        first = next(iter(drivers.values()))

        def check(message: Mapping[str, Any]) -> None:
            by_key[Key(message["case"], message["name"])].check(message["turn"])

        actions = {"check": check, "left_out": lambda message: {"left_out": left_out}}
        serve(contenders_of(prepared), first.rank, first.barrier, actions=actions)


@contextmanager
def opened(targets: Sequence[Target]) -> Iterator[dict[str, Driver]]:
    """Open every library of this job; yield them by name, faulty forms included, and close them at the end.

    Examples:
        >>> from hocket.bench import opened, parse_targets
        >>> with opened(parse_targets("shm")) as drivers:
        ...     print(drivers["shm"].name, drivers["shm"].size)
        shm 1
    """
    world = open_world(targets)
    drivers = open_drivers(targets, world)
    try:
        yield drivers
    finally:
        for driver in drivers.values():
            driver.finalize()
        if world is not None:
            world.finalize()


def open_world(targets: Sequence[Target]) -> Communicator | None:
    """Open hocket's world with the backends of the targets; return None if no target is called through hocket.

    Examples:
        >>> from hocket.bench import open_world, parse_targets
        >>> world = open_world(parse_targets("shm"))
        >>> list(world.backends)
        ['shm']
        >>> world.finalize()
    """
    own = _of_hocket(targets)
    return init(backends=None if MIX in own else own, timeout=120.0) if own else None


def open_drivers(targets: Sequence[Target], world: Communicator | None) -> dict[str, Driver]:
    """Open every library of this job; return them by name, faulty forms included.

    Examples:
        >>> from hocket.bench import open_drivers, open_world, parse_targets
        >>> targets = parse_targets("shm,shm!slow=5%")
        >>> world = open_world(targets)
        >>> list(open_drivers(targets, world))
        ['shm', 'shm!slow=5%']
        >>> world.finalize()
    """
    plain: dict[str, Driver] = {}
    if world is not None:
        plain |= {name: HocketDriver(world, name) for name in _of_hocket(targets)}
    for each in targets:
        name = each.plain_name
        if each.through == "mpi4py" and name not in plain:
            from hocket.bench.drivers.mpi4py import Mpi4pyDriver

            plain[name] = Mpi4pyDriver(name)
        elif each.through == "torch" and name not in plain:
            from hocket.bench.drivers.torch import TorchDriver

            plain[name] = TorchDriver(name)
    drivers: dict[str, Driver] = {}
    for each in targets:
        driver, fault = plain[each.plain_name], each.name.partition("!")[2]
        drivers[each.name] = FaultyDriver(driver, fault) if fault else driver
    return drivers


def contenders_of(prepared: Mapping[Point, Prepared]) -> list[Contender]:
    """Return the contenders: each benchmark, and the parts that are timed beside it in the same rounds."""
    contenders = [Contender(*point.key, each.run, each.once) for point, each in prepared.items()]
    for point, each in prepared.items():
        contenders += [Contender(*point.part_key(name), run) for name, run in each.parts.items()]
        contenders += [Contender(*point.part_key(name), run, keeps_time=True) for name, run in each.shares.items()]
    return contenders


def prepare_all(
    points: Sequence[Point], drivers: Mapping[str, Driver], num_warm_up: int = 0
) -> tuple[dict[Point, Prepared], list[tuple[str, str]]]:
    """Set all benchmarks up on this rank, check the first result of each, and run `num_warm_up` iterations of each.

    Returns:
        Benchmarks by point; and for each point that its library does not support, case and way with the reason. Both
        are the same on all ranks.

    Raises:
        WrongResult: an operation gives a wrong result on some rank; raised on all ranks.

    Examples:
        >>> from hocket.bench import Point, opened, parse_targets, prepare_all
        >>> point = Point("all_reduce", "shm", 1024, dtype="float32")
        >>> with opened(parse_targets("shm")) as drivers:
        ...     prepared, left_out = prepare_all([point], drivers)
        >>> list(prepared) == [point], left_out
        (True, [])
    """
    prepared: dict[Point, Prepared] = {}
    left_out = []
    arrays: dict[tuple[object, ...], Any] = {}
    for point in points:
        driver = drivers[point.target]
        benchmark, wrong = find_benchmark(point.benchmark), ""
        refusal = benchmark.obstacle(point)
        try:
            if not refusal:
                each = benchmark.make(Setting(point, driver, find_kind(point.buffer), arrays))
                wrong = look(each, 0)
        except driver.refusals as error:
            refusal = " ".join(str(error).split()) or type(error).__name__
        refusals, wrongs = zip(*driver.share((refusal, wrong)), strict=True)
        raise_wrong(wrongs)
        if any(refusals):
            left_out.append((" ".join(point.key), next(filter(None, refusals))))
        else:
            prepared[point] = each
    for each in prepared.values():
        each.run(num_warm_up)
    return prepared, left_out


def look(prepared: Prepared, turn: int) -> str:
    """Return the error of a result on this rank, or "".

    It is shared with all ranks before one raises it: the others would wait for a rank that has ended.
    """
    try:
        prepared.check(turn)
    except WrongResult as error:
        return str(error)
    return ""


def raise_wrong(wrongs: Sequence[str]) -> None:
    """Raise the error of the first rank that has one, given those of all ranks."""
    for rank, wrong in enumerate(wrongs):
        if wrong:
            raise WrongResult(f"{wrong}, on rank {rank}")


def _of_hocket(targets: Sequence[Target]) -> list[str]:
    return list(dict.fromkeys(each.plain_name for each in targets if each.through == "hocket"))


if __name__ == "__main__":
    main(sys.argv[1])
