"""Choices for MPICH 5, as JSON.

    MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE=FILE MPIR_CVAR_DEVICE_COLLECTIVES=none mpiexec ...

Without the second variable, MPICH uses the file for fewer choices. It cuts collectives between hosts into parts by its
own rules. On one host, in programs without threads, it executes broadcast, all_reduce, reduce and barrier in its own
shared memory, from about the fifth call on. No schedule corresponds to that, so it was not compared. It may be faster
for small arrays.

The choices for non-blocking collectives are MPICH's defaults.

The format allows no comments, so the file does not show which times are measured. It has the same form as MPICH's own
file, maint/tuning/coll/mpir/generic.json of its sources; src/mpi/coll/src/csel.c defines the size of each collective.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from hocket.collectives import find_algorithm
from hocket.tune.export import exporter
from hocket.tune.exporters._choices import Choice, choices, first_of_each
from hocket.tune.exporters._mpich_tree import Tree, either, if_divisible, own_choices, use
from hocket.tune.table import Table

_BACKEND = "mpi"
# For each collective: MPICH's name, and MPICH's name for the bytes that `Choice.nbytes` counts.
_COLLECTIVES = {
    "all_gather": ("allgather", "total_msg_size"),
    "all_reduce": ("allreduce", "avg_msg_size"),
    "all_to_all": ("alltoall", "total_msg_size"),
    "broadcast": ("bcast", "avg_msg_size"),
    "reduce": ("reduce", "avg_msg_size"),
    "reduce_scatter": ("reduce_scatter_block", "total_msg_size"),
}
# In some of these algorithms, MPICH's ranks have other partners, but equally many messages of the same size, or fewer.
# MPICH uses doubling and halving where scatter_bruck, and scatter_ring of reduce, send in circular order. Its pairwise
# reduce_scatter sends to all ranks in turn. Its alltoall has up to MPIR_CVAR_ALLTOALL_THROTTLE (32) messages in flight.
_ALGORITHMS = {
    "all_gather": {
        "recursive_doubling": "Allgather_intra_recursive_doubling",
        "ring": "Allgather_intra_ring",
        "bruck": "Allgather_intra_brucks",
    },
    "all_reduce": {
        "recursive_doubling": "Allreduce_intra_recursive_doubling",
        "rabenseifner": "Allreduce_intra_reduce_scatter_allgather",
        "ring": "Allreduce_intra_ring",
    },
    "all_to_all": {
        "pairwise": "Alltoall_intra_pairwise",
        "windowed": "Alltoall_intra_scattered",
        "bruck": "Alltoall_intra_brucks",
    },
    "broadcast": {
        "binomial": "Bcast_intra_binomial",
        "chain": "Bcast_intra_pipelined_tree",
        "binary_tree": "Bcast_intra_pipelined_tree",
        "scatter_bruck": "Bcast_intra_scatter_recursive_doubling_allgather",
        "scatter_ring": "Bcast_intra_scatter_ring_allgather",
    },
    "reduce": {"binomial": "Reduce_intra_binomial", "scatter_ring": "Reduce_intra_reduce_scatter_gather"},
    "reduce_scatter": {
        "recursive_halving": "Reduce_scatter_block_intra_recursive_halving",
        "ring": "Reduce_scatter_block_intra_pairwise",
    },
}
_NUM_CHILDREN = {"chain": 1, "binary_tree": 2}
# Schedules for any number of ranks whose counterpart in MPICH needs a power of two.
_FOR_POWERS_OF_TWO = {("broadcast", "scatter_bruck")}
_NO_POWER_OF_TWO = 3
_LARGEST_INT = (1 << 31) - 1


@exporter("mpich-json", "choices for MPICH 5 (MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE); tested with 5.0")
def write(table: Table, ranks: Sequence[int]) -> str:
    """Write the whole tree.

    A number of ranks also stands for those down to the next smaller one, and the last number for all above it.
    """
    tree = own_choices()
    for op, (name, _) in _COLLECTIVES.items():
        chosen = _by_ranks(table, op, ranks)
        if chosen:
            tree[name]["comm_type=intra"] = _GUARDS[op](chosen) if op in _GUARDS else chosen
    return json.dumps({f"collective={name}": each for name, each in tree.items()}, indent=1) + "\n"


def _by_ranks(table: Table, op: str, ranks: Sequence[int]) -> Tree:
    """Return the rules of every number of ranks; powers of two up to it may have other rules than the rest."""
    names = _ALGORITHMS[op]
    for_any = _by_sizes(table, op, [name for name in names if _is_for_any(op, name)], ranks)
    for_powers = _by_sizes(table, op, names, [each for each in ranks if _is_power_of_two(each)])
    tree: Tree = {}
    least, last = 1, max(for_any, default=0)
    for num_ranks, rules in for_any.items():
        power_rules = for_powers.get(num_ranks, rules)
        if num_ranks != last and all(map(_is_power_of_two, range(least, num_ranks + 1))):
            rules = power_rules
        tree["comm_size=any" if num_ranks == last else f"comm_size<={num_ranks}"] = (
            rules if rules == power_rules else either("comm_size=pow2", power_rules, rules)
        )
        least = num_ranks + 1
    return tree


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _is_for_any(op: str, name: str) -> bool:
    restricted = find_algorithm(op, name).restriction(_NO_POWER_OF_TWO) is not None
    return not restricted and (op, name) not in _FOR_POWERS_OF_TWO


def _by_sizes(table: Table, op: str, names: Collection[str], ranks: Sequence[int]) -> dict[int, Tree]:
    subject = _COLLECTIVES[op][1]
    return {
        num_ranks: {f"{subject}{most}": leaf for most, leaf in _rules(op, found)}
        for _, num_ranks, found in choices(table, {op: names}, ranks, _BACKEND)
    }


def _rules(op: str, found: Sequence[Choice]) -> Iterator[tuple[str, Tree]]:
    """Yield a condition on the upper end, such as "<=4095", for every range with one choice; "=any" for the last."""
    leaf = partial(_leaf, op)
    first, *others = first_of_each(found, leaf)
    for each in others:
        if each.nbytes - 1 > _LARGEST_INT:  # MPICH reads the borders as ints
            break
        yield f"<={each.nbytes - 1}", leaf(first)
        first = each
    yield "=any", leaf(first)


def _leaf(op: str, choice: Choice) -> Tree:
    name = _ALGORITHMS[op][choice.algorithm]
    if choice.algorithm not in _NUM_CHILDREN:
        return use(name)
    return use(
        name,
        tree_type="kary",
        k=_NUM_CHILDREN[choice.algorithm],
        chunk_size=choice.segment_nbytes,
        # MPICH's defaults: sends of a segment overlap, and three receives wait for segments.
        is_non_blocking=1,
        recv_pre_posted=0,
    )


def _if_commutative(chosen: Tree) -> Tree:
    in_order = "Reduce_scatter_block_intra_noncommutative", "Reduce_scatter_block_intra_recursive_doubling"
    return either("is_commutative=yes", chosen, either("comm_size=pow2", *map(use, in_order)))


_GUARDS: Mapping[str, Callable[[Tree], Tree]] = {
    "all_reduce": partial(if_divisible, use("Allreduce_intra_recursive_doubling")),
    "all_to_all": partial(either, "is_sendbuf_inplace=yes", use("Alltoall_intra_pairwise_sendrecv_replace")),
    "reduce": partial(if_divisible, use("Reduce_intra_binomial")),
    "reduce_scatter": _if_commutative,
}
