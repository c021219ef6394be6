"""all_reduce in two levels: within every host, and across hosts on as many rails as a host has ranks."""

from __future__ import annotations

import numpy as np

from hocket.collectives.link import Link
from hocket.collectives.registry import algorithm, find_algorithm
from hocket.collectives.schedule import COLUMNS, Schedule, from_columns
from hocket.collectives.transform import sequence
from hocket.errors import InvalidArgument


def _check(num_ranks: int, ranks_per_host: int) -> int:
    num_hosts, left = divmod(num_ranks, ranks_per_host)
    if left:
        raise InvalidArgument(f"{num_ranks} ranks do not lie on hosts of {ranks_per_host} each")
    return num_hosts


def _hierarchical_s(
    link: Link,
    num_ranks: int,
    nbytes: float,
    ranks_per_host: int = 1,
    inner: str = "ring",
    outer: str = "ring",
) -> float:
    num_hosts = _check(num_ranks, ranks_per_host)
    scatter, gather = (find_algorithm(name, inner) for name in ("reduce_scatter", "all_gather"))
    across = find_algorithm("all_reduce", outer)
    return (
        scatter.seconds(link, ranks_per_host, nbytes)
        + across.seconds(link, num_hosts, nbytes / ranks_per_host)
        + gather.seconds(link, ranks_per_host, nbytes)
    )


@algorithm(
    "all_reduce",
    "hierarchical",
    formula="reduce_scatter within hosts + all_reduce of m/p across + all_gather within, p ranks a host",
    seconds=_hierarchical_s,
    exact=False,
)
def hierarchical(num_ranks: int, ranks_per_host: int = 1, inner: str = "ring", outer: str = "ring") -> Schedule:
    """A reduce_scatter and an all_gather within hosts, any all_reduce across; hosts hold ranks in a row."""
    num_hosts = _check(num_ranks, ranks_per_host)
    across = find_algorithm("all_reduce", outer).schedule(num_hosts)
    per_part = across.num_blocks
    scatter, gather = (
        _within_hosts(find_algorithm(name, inner).schedule(ranks_per_host), num_hosts, per_part)
        for name in ("reduce_scatter", "all_gather")
    )
    return sequence("all_reduce", scatter, _across_hosts(across, ranks_per_host), gather)


def _within_hosts(schedule: Schedule, num_hosts: int, per_part: int) -> Schedule:
    """The same on every host, with blocks that consist of several."""
    host, row, part = np.meshgrid(np.arange(num_hosts), np.arange(len(schedule)), np.arange(per_part), indexing="ij")
    parts_each = schedule.num_blocks // schedule.num_ranks
    if parts_each != 1:
        raise InvalidArgument(f"{schedule.algorithm} with several blocks a rank cannot be a part of a hierarchy")
    columns = {name: getattr(schedule, name)[row].ravel() for name in COLUMNS}
    for name in ("sources", "destinations"):
        columns[name] = columns[name] + (host * schedule.num_ranks).ravel()
    for name in ("blocks", "source_slots", "destination_slots"):
        columns[name] = columns[name] * per_part + part.ravel()
    num_blocks = schedule.num_blocks * per_part
    return from_columns("all_reduce", schedule.num_ranks * num_hosts, num_blocks, num_blocks, columns)


def _across_hosts(schedule: Schedule, ranks_per_host: int) -> Schedule:
    """The same between the ranks of every place on a host, each on its part of the blocks."""
    place, row = np.meshgrid(np.arange(ranks_per_host), np.arange(len(schedule)), indexing="ij")
    columns = {name: getattr(schedule, name)[row].ravel() for name in COLUMNS}
    for name in ("sources", "destinations"):
        columns[name] = columns[name] * ranks_per_host + place.ravel()
    for name in ("blocks", "source_slots", "destination_slots"):
        columns[name] = columns[name] + (place * schedule.num_blocks).ravel()
    num_blocks = schedule.num_blocks * ranks_per_host
    return from_columns("all_reduce", schedule.num_ranks * ranks_per_host, num_blocks, num_blocks, columns)
