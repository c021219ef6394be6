"""Collectives in levels: within hosts, and across hosts on as many rails as a host has ranks.

Hosts hold as many ranks each, in a row. What crosses between hosts is the least that can: what another host needs goes
there once, and each rank of a host sends an equal part of it. Ranks of a host that share a cache or a memory node may
be a level of their own (`ranks_per_domain`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.collectives.registry import Algorithm, algorithm, find_algorithm
from hocket.collectives.schedule import COLUMNS, Rounds, Schedule, Transfers, from_columns, make_schedule, renumbered
from hocket.collectives.transform import overlapped, reverse, segmented, sequence, without_repeats
from hocket.errors import InvalidArgument
from hocket.sim import Link


def _group_of(num_ranks: int, ranks_per_host: int, ranks_per_domain: int = 1) -> int:
    """Ranks of the innermost level."""
    if num_ranks % ranks_per_host:
        raise InvalidArgument(f"{num_ranks} ranks do not lie on hosts of {ranks_per_host} each")
    if ranks_per_host % ranks_per_domain:
        raise InvalidArgument(f"{ranks_per_host} ranks of a host do not lie in domains of {ranks_per_domain} each")
    return ranks_per_domain if ranks_per_domain > 1 else ranks_per_host


def _outer(
    collective: str, name: str, ranks_per_host: int, ranks_per_domain: int, inner: str
) -> tuple[Algorithm, dict[str, Any]]:
    """What is done across the groups of the innermost level: the named algorithm, or this one again."""
    if ranks_per_domain == 1:
        return find_algorithm(collective, name), {}
    levels = {"ranks_per_host": ranks_per_host // ranks_per_domain, "inner": inner, "outer": name}
    return find_algorithm(collective, "hierarchical"), levels


def _inner(collective: str, name: str, num_ranks: int) -> Schedule:
    schedule = find_algorithm(collective, name).schedule(num_ranks)
    if schedule.num_blocks != num_ranks:
        raise InvalidArgument(f"{name} with several blocks a rank cannot be a part of a hierarchy")
    return schedule


def _in_groups(part: Schedule, ranks: NDArray[np.int64], blocks: NDArray[np.int64]) -> Schedule:
    """Have groups of ranks do the same side by side, on blocks of their own.

    Args:
        part: what every group does; without scratch memory, as no all_reduce, all_gather or broadcast has any.
        ranks: [group, rank of the part].
        blocks: [group, block of the part, how many]: those that take the place of one.
    """
    group, row, place = np.meshgrid(
        np.arange(len(ranks)), np.arange(len(part)), np.arange(blocks.shape[2]), indexing="ij"
    )
    columns = {name: getattr(part, name)[row] for name in COLUMNS}
    for name in ("sources", "destinations"):
        columns[name] = ranks[group, columns[name]]
    for name in ("blocks", "source_slots", "destination_slots"):
        columns[name] = blocks[group, columns[name], place]
    num_blocks = int(blocks.max()) + 1
    flat = {name: column.ravel() for name, column in columns.items()}
    return from_columns(part.collective, ranks.size, num_blocks, num_blocks, flat, ports=part.ports)


def _neighbours(num_ranks: int, group: int) -> NDArray[np.int64]:
    """The ranks of each group."""
    return np.arange(num_ranks).reshape(-1, group)


# all_reduce: blocks [place in the group, block of what is done across]


def _all_reduce_s(
    link: Link,
    num_ranks: int,
    nbytes: float,
    ranks_per_host: int = 1,
    ranks_per_domain: int = 1,
    num_segments: int = 1,
    inner: str = "ring",
    outer: str = "ring",
) -> float:
    group = _group_of(num_ranks, ranks_per_host, ranks_per_domain)
    across, parameters = _outer("all_reduce", outer, ranks_per_host, ranks_per_domain, inner)
    segment = nbytes / num_segments
    return num_segments * (
        find_algorithm("reduce_scatter", inner).seconds(link, group, segment)
        + across.seconds(link, num_ranks // group, segment / group, **parameters)
        + find_algorithm("all_gather", inner).seconds(link, group, segment)
    )


@algorithm(
    "all_reduce",
    "hierarchical",
    formula="reduce_scatter within hosts + all_reduce of m/p across + all_gather within, p ranks a host",
    seconds=_all_reduce_s,
    exact=False,
)
def all_reduce(
    num_ranks: int,
    ranks_per_host: int = 1,
    ranks_per_domain: int = 1,
    num_segments: int = 1,
    inner: str = "ring",
    outer: str = "ring",
) -> Schedule:
    """A reduce_scatter and an all_gather within hosts, any all_reduce across; in segments, they overlap."""
    group = _group_of(num_ranks, ranks_per_host, ranks_per_domain)
    found, parameters = _outer("all_reduce", outer, ranks_per_host, ranks_per_domain, inner)
    across = found.schedule(num_ranks // group, **parameters)
    blocks = np.arange(group * across.num_blocks).reshape(group, -1)
    ranks = _neighbours(num_ranks, group)
    scatter, gather = (
        _in_groups(_inner(name, inner, group), ranks, np.broadcast_to(blocks, (len(ranks), *blocks.shape)))
        for name in ("reduce_scatter", "all_gather")
    )
    return overlapped(
        "all_reduce", [scatter, _in_groups(across, ranks.T, blocks[:, :, None]), gather], [0, 1, 0], num_segments
    )


# all_gather and reduce_scatter: blocks [group, place in the group]


def _all_gather_s(
    link: Link,
    num_ranks: int,
    nbytes: float,
    ranks_per_host: int = 1,
    ranks_per_domain: int = 1,
    num_segments: int = 1,
    inner: str = "ring",
    outer: str = "ring",
) -> float:
    group = _group_of(num_ranks, ranks_per_host, ranks_per_domain)
    across, parameters = _outer("all_gather", outer, ranks_per_host, ranks_per_domain, inner)
    segment = nbytes / num_segments
    return num_segments * (
        across.seconds(link, num_ranks // group, segment / group, **parameters)
        + find_algorithm("all_gather", inner).seconds(link, group, segment)
    )


@algorithm(
    "all_gather",
    "hierarchical",
    formula="all_gather of m/p across hosts + all_gather within, p ranks a host",
    seconds=_all_gather_s,
)
def all_gather(
    num_ranks: int,
    ranks_per_host: int = 1,
    ranks_per_domain: int = 1,
    num_segments: int = 1,
    inner: str = "ring",
    outer: str = "ring",
) -> Schedule:
    """Ranks with the same place on their hosts exchange their blocks, and then those of a host what they have."""
    group = _group_of(num_ranks, ranks_per_host, ranks_per_domain)
    found, parameters = _outer("all_gather", outer, ranks_per_host, ranks_per_domain, inner)
    across = found.schedule(num_ranks // group, **parameters)
    if across.num_blocks != across.num_ranks:
        raise InvalidArgument(f"{outer} with several blocks a rank cannot be a part of a hierarchy")
    ranks = _neighbours(num_ranks, group)
    blocks = np.broadcast_to(ranks.T, (len(ranks), *ranks.T.shape))
    within = _in_groups(_inner("all_gather", inner, group), ranks, blocks)
    return overlapped("all_gather", [_in_groups(across, ranks.T, ranks.T[:, :, None]), within], [1, 0], num_segments)


def _reduce_scatter_s(link: Link, num_ranks: int, nbytes: float, **parameters: Any) -> float:
    return _all_gather_s(Link(link.alpha_s, link.beta_s + link.gamma_s), num_ranks, nbytes, **parameters)


@algorithm(
    "reduce_scatter",
    "hierarchical",
    formula="reduce_scatter within hosts + reduce_scatter of m/p across, p ranks a host",
    seconds=_reduce_scatter_s,
    exact=False,
)
def reduce_scatter(
    num_ranks: int,
    ranks_per_host: int = 1,
    ranks_per_domain: int = 1,
    num_segments: int = 1,
    inner: str = "ring",
    outer: str = "ring",
) -> Schedule:
    """The all_gather backwards."""
    return reverse(all_gather(num_ranks, ranks_per_host, ranks_per_domain, num_segments, inner, outer))


# broadcast and reduce: blocks [place on the host, block of what is done across]


def _broadcast_s(
    link: Link,
    num_ranks: int,
    nbytes: float,
    ranks_per_host: int = 1,
    num_blocks: int = 8,
    inner: str = "ring",
    outer: str = "chain",
) -> float:
    group = _group_of(num_ranks, ranks_per_host)
    across = find_algorithm("broadcast", outer)
    in_blocks = {"num_blocks": num_blocks} if "num_blocks" in across.parameters else {}
    return (
        (group - 1) * num_blocks * link.message_s(nbytes / group / num_blocks)
        + across.seconds(link, num_ranks // group, nbytes / group, **in_blocks)
        + num_blocks * find_algorithm("all_gather", inner).seconds(link, group, nbytes / num_blocks)
    )


@algorithm(
    "broadcast",
    "hierarchical",
    formula="at most: scatter on the root's host + broadcast of m/p across + all_gather within hosts, p ranks a host",
    seconds=_broadcast_s,
    exact=False,
)
def broadcast(
    num_ranks: int, ranks_per_host: int = 1, num_blocks: int = 8, inner: str = "ring", outer: str = "chain"
) -> Schedule:
    """The root's host divides the array between its ranks, each of which sends its part across.

    Each part goes in so many blocks, so that the three steps overlap. Where the root is not the first rank, hosts stay
    together (`Schedule.group_size`).
    """
    group = _group_of(num_ranks, ranks_per_host)
    found = find_algorithm("broadcast", outer)
    in_blocks = {"num_blocks": num_blocks} if "num_blocks" in found.parameters else {}
    across = found.schedule(num_ranks // group, **in_blocks)
    blocks = np.arange(group * across.num_blocks).reshape(group, -1)
    ranks = _neighbours(num_ranks, group)

    def scatter() -> Rounds:
        for block in range(across.num_blocks):
            for place in range(1, group):
                yield Transfers([0], [place], [blocks[place, block]])

    within = segmented(_inner("all_gather", inner, group), across.num_blocks)
    everywhere = np.broadcast_to(np.arange(blocks.size).reshape(-1, 1), (len(ranks), blocks.size, 1))
    whole = sequence(
        "broadcast",
        make_schedule("broadcast", num_ranks, blocks.size, scatter()),
        _in_groups(across, ranks.T, blocks[:, :, None]),
        _in_groups(within, ranks, everywhere),
    )
    return renumbered(without_repeats(whole), group_size=group)


def _reduce_s(link: Link, num_ranks: int, nbytes: float, **parameters: Any) -> float:
    return _broadcast_s(Link(link.alpha_s, link.beta_s + link.gamma_s), num_ranks, nbytes, **parameters)


@algorithm(
    "reduce",
    "hierarchical",
    formula="at most that of the broadcast with β + γ",
    seconds=_reduce_s,
    exact=False,
    reference="broadcast by hierarchical, backwards",
)
def reduce(
    num_ranks: int, ranks_per_host: int = 1, num_blocks: int = 8, inner: str = "ring", outer: str = "chain"
) -> Schedule:
    """The broadcast backwards."""
    return reverse(broadcast(num_ranks, ranks_per_host, num_blocks, inner, outer))


# all_to_all: slots P + r hold what came from rank r; behind them [host, rank of that host] what is passed on


def _all_to_all_s(link: Link, num_ranks: int, nbytes: float, ranks_per_host: int = 1) -> float:
    group = _group_of(num_ranks, ranks_per_host)
    num_hosts = num_ranks // group
    across_s = (num_hosts - 1) * link.message_s(nbytes / num_hosts)
    return across_s + (group - 1) * link.message_s(nbytes / group)


@algorithm(
    "all_to_all",
    "hierarchical",
    formula="(H - 1)(α + mβ/H) across H hosts + (p - 1)(α + mβ/p) within, p ranks a host",
    seconds=_all_to_all_s,
)
def all_to_all(num_ranks: int, ranks_per_host: int = 1) -> Schedule:
    """A rank sends all that another host gets in one message to the rank with its place there, which passes it on."""
    group = _group_of(num_ranks, ranks_per_host)
    num_hosts = num_ranks // group
    ranks = np.arange(num_ranks)
    hosts, places = ranks // group, ranks % group
    # [rank that has them, host that they come from, place that they go to]: where they lie in between
    passed_on = 2 * num_ranks + np.arange(num_hosts)[:, None] * group + np.arange(group)

    def rounds() -> Rounds:
        yield Transfers(ranks, ranks, ranks * (num_ranks + 1), ranks, num_ranks + ranks)
        for distance in range(1, num_hosts):
            target_hosts = (hosts + distance) % num_hosts
            via = (target_hosts * group + places)[:, None]
            targets = target_hosts[:, None] * group + np.arange(group)
            arrived = np.where(targets == via, num_ranks + ranks[:, None], passed_on[hosts])
            yield Transfers(ranks[:, None], via, ranks[:, None] * num_ranks + targets, targets, arrived)
        for distance in range(1, group):
            target_places = (places + distance) % group
            targets = (hosts * group + target_places)[:, None]
            sources = np.arange(num_hosts) * group + places[:, None]  # whose blocks they are
            own = sources == ranks[:, None]
            held = np.where(own, targets, passed_on[np.arange(num_hosts), target_places[:, None]])
            yield Transfers(ranks[:, None], targets, sources * num_ranks + targets, held, num_ranks + sources)

    num_slots = 2 * num_ranks + (num_ranks if 1 < group < num_ranks else 0)
    return make_schedule("all_to_all", num_ranks, num_ranks**2, rounds(), num_slots=num_slots)
