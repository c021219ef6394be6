"""Hierarchical collectives: within hosts, and across hosts with one rail per rank of a host.

Each host holds the same number of consecutive ranks. The traffic between hosts is minimal: data for another host is
sent to it once, and each rank of a host sends an equal part. Ranks of a host that share a cache or a memory node can
form another level (`ranks_per_domain`).
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
    """Return the number of ranks per group of the innermost level."""
    if num_ranks % ranks_per_host:
        raise InvalidArgument(f"ranks_per_host must divide the number of ranks, {num_ranks}; got {ranks_per_host}")
    if ranks_per_host % ranks_per_domain:
        raise InvalidArgument(f"ranks_per_domain must divide ranks_per_host, {ranks_per_host}; got {ranks_per_domain}")
    return ranks_per_domain if ranks_per_domain > 1 else ranks_per_host


def _outer(
    collective: str, name: str, ranks_per_host: int, ranks_per_domain: int, inner: str
) -> tuple[Algorithm, dict[str, Any]]:
    """Return the algorithm across the groups of the innermost level: the named one, or this one recursively."""
    if ranks_per_domain == 1:
        return find_algorithm(collective, name), {}
    levels = {"ranks_per_host": ranks_per_host // ranks_per_domain, "inner": inner, "outer": name}
    return find_algorithm(collective, "hierarchical"), levels


def _inner(collective: str, name: str, num_ranks: int) -> Schedule:
    schedule = find_algorithm(collective, name).schedule(num_ranks)
    if schedule.num_blocks != num_ranks:
        raise InvalidArgument(f"{name} uses several blocks per rank, so it cannot be part of a hierarchy")
    return schedule


def _in_groups(part: Schedule, ranks: NDArray[np.int64], blocks: NDArray[np.int64]) -> Schedule:
    """Run one schedule in several groups of ranks in parallel, on separate blocks.

    Args:
        part: schedule of every group; without scratch memory, as for all_reduce, all_gather and broadcast.
        ranks: [group, rank of the part] -> rank.
        blocks: [group, block of the part, index] -> block; each block of the part becomes several.
    """
    group, row, index = np.meshgrid(
        np.arange(len(ranks)), np.arange(len(part)), np.arange(blocks.shape[2]), indexing="ij"
    )
    columns = {name: getattr(part, name)[row] for name in COLUMNS}
    for name in ("sources", "destinations"):
        columns[name] = ranks[group, columns[name]]
    for name in ("blocks", "source_slots", "destination_slots"):
        columns[name] = blocks[group, columns[name], index]
    num_blocks = int(blocks.max()) + 1
    flat = {name: column.ravel() for name, column in columns.items()}
    return from_columns(part.collective, ranks.size, num_blocks, num_blocks, flat, ports=part.ports)


def _ranks_by_group(num_ranks: int, group: int) -> NDArray[np.int64]:
    """Return [group, index] -> rank."""
    return np.arange(num_ranks).reshape(-1, group)


# all_reduce: blocks [index within the group, block of the algorithm across groups]


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
    formula="reduce_scatter within hosts + all_reduce of m/p across + all_gather within, p ranks per host",
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
    """reduce_scatter and all_gather within hosts, any all_reduce across; segments overlap these steps."""
    group = _group_of(num_ranks, ranks_per_host, ranks_per_domain)
    algorithm_across, parameters = _outer("all_reduce", outer, ranks_per_host, ranks_per_domain, inner)
    across = algorithm_across.schedule(num_ranks // group, **parameters)
    blocks = np.arange(group * across.num_blocks).reshape(group, -1)
    ranks = _ranks_by_group(num_ranks, group)
    scatter, gather = (
        _in_groups(_inner(name, inner, group), ranks, np.broadcast_to(blocks, (len(ranks), *blocks.shape)))
        for name in ("reduce_scatter", "all_gather")
    )
    return overlapped(
        "all_reduce", [scatter, _in_groups(across, ranks.T, blocks[:, :, None]), gather], [0, 1, 0], num_segments
    )


# all_gather and reduce_scatter: blocks [group, index within the group]


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
    formula="all_gather of m/p across hosts + all_gather within, p ranks per host",
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
    """Ranks with equal index on their hosts exchange their blocks, then the ranks of each host exchange all."""
    group = _group_of(num_ranks, ranks_per_host, ranks_per_domain)
    algorithm_across, parameters = _outer("all_gather", outer, ranks_per_host, ranks_per_domain, inner)
    across = algorithm_across.schedule(num_ranks // group, **parameters)
    if across.num_blocks != across.num_ranks:
        raise InvalidArgument(f"{outer} uses several blocks per rank, so it cannot be part of a hierarchy")
    ranks = _ranks_by_group(num_ranks, group)
    blocks = np.broadcast_to(ranks.T, (len(ranks), *ranks.T.shape))
    within = _in_groups(_inner("all_gather", inner, group), ranks, blocks)
    return overlapped("all_gather", [_in_groups(across, ranks.T, ranks.T[:, :, None]), within], [1, 0], num_segments)


def _reduce_scatter_s(link: Link, num_ranks: int, nbytes: float, **parameters: Any) -> float:
    return _all_gather_s(Link(link.alpha_s, link.beta_s + link.gamma_s), num_ranks, nbytes, **parameters)


@algorithm(
    "reduce_scatter",
    "hierarchical",
    formula="reduce_scatter within hosts + reduce_scatter of m/p across, p ranks per host",
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
    """The reversed all_gather."""
    return reverse(all_gather(num_ranks, ranks_per_host, ranks_per_domain, num_segments, inner, outer))


# broadcast and reduce: blocks [index on the host, block of the algorithm across hosts]


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
    formula="at most: scatter on the root's host + broadcast of m/p across + all_gather within hosts, p ranks per host",
    seconds=_broadcast_s,
    exact=False,
)
def broadcast(
    num_ranks: int, ranks_per_host: int = 1, num_blocks: int = 8, inner: str = "ring", outer: str = "chain"
) -> Schedule:
    """The root scatters the array over its host; each rank of the host sends its part to the other hosts.

    Each part is divided into `num_blocks` blocks, so that the three steps overlap. For any root, the ranks of a host
    stay together (`Schedule.group_size`).
    """
    group = _group_of(num_ranks, ranks_per_host)
    outer_algorithm = find_algorithm("broadcast", outer)
    in_blocks = {"num_blocks": num_blocks} if "num_blocks" in outer_algorithm.parameters else {}
    across = outer_algorithm.schedule(num_ranks // group, **in_blocks)
    blocks = np.arange(group * across.num_blocks).reshape(group, -1)
    ranks = _ranks_by_group(num_ranks, group)

    def scatter() -> Rounds:
        for block in range(across.num_blocks):
            for index in range(1, group):
                yield Transfers([0], [index], [blocks[index, block]])

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
    formula="at most the time of the broadcast with β + γ",
    seconds=_reduce_s,
    exact=False,
    reference="broadcast by hierarchical, reversed",
)
def reduce(
    num_ranks: int, ranks_per_host: int = 1, num_blocks: int = 8, inner: str = "ring", outer: str = "chain"
) -> Schedule:
    """The reversed broadcast."""
    return reverse(broadcast(num_ranks, ranks_per_host, num_blocks, inner, outer))


# all_to_all: slot P + r holds the block from rank r; the slots after them, [host, rank of the host], blocks to forward


def _all_to_all_s(link: Link, num_ranks: int, nbytes: float, ranks_per_host: int = 1) -> float:
    group = _group_of(num_ranks, ranks_per_host)
    num_hosts = num_ranks // group
    across_s = (num_hosts - 1) * link.message_s(nbytes / num_hosts)
    return across_s + (group - 1) * link.message_s(nbytes / group)


@algorithm(
    "all_to_all",
    "hierarchical",
    formula="(H - 1)(α + mβ/H) across H hosts + (p - 1)(α + mβ/p) within, p ranks per host",
    seconds=_all_to_all_s,
)
def all_to_all(num_ranks: int, ranks_per_host: int = 1) -> Schedule:
    """A rank sends all blocks for another host in one message to its peer there, which forwards them."""
    group = _group_of(num_ranks, ranks_per_host)
    num_hosts = num_ranks // group
    ranks = np.arange(num_ranks)
    hosts, local_ranks = ranks // group, ranks % group
    # [host of the source, local rank of the target] -> slot of a block to forward
    forwarded = 2 * num_ranks + np.arange(num_hosts)[:, None] * group + np.arange(group)

    def rounds() -> Rounds:
        yield Transfers(ranks, ranks, ranks * (num_ranks + 1), ranks, num_ranks + ranks)
        for distance in range(1, num_hosts):
            target_hosts = (hosts + distance) % num_hosts
            via = (target_hosts * group + local_ranks)[:, None]
            targets = target_hosts[:, None] * group + np.arange(group)
            arrived = np.where(targets == via, num_ranks + ranks[:, None], forwarded[hosts])
            yield Transfers(ranks[:, None], via, ranks[:, None] * num_ranks + targets, targets, arrived)
        for distance in range(1, group):
            local_targets = (local_ranks + distance) % group
            targets = (hosts * group + local_targets)[:, None]
            sources = np.arange(num_hosts) * group + local_ranks[:, None]  # ranks that the blocks are from
            own = sources == ranks[:, None]
            held = np.where(own, targets, forwarded[np.arange(num_hosts), local_targets[:, None]])
            yield Transfers(ranks[:, None], targets, sources * num_ranks + targets, held, num_ranks + sources)

    num_slots = 2 * num_ranks + (num_ranks if 1 < group < num_ranks else 0)
    return make_schedule("all_to_all", num_ranks, num_ranks**2, rounds(), num_slots=num_slots)
