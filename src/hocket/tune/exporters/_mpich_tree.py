"""MPICH's default choices, as a tree in the format of its tuning file. A tuning file must contain all choices.

MPICH searches its tuning file for every collective, also for non-blocking collectives and those between groups. If it
does not find one, the program ends; and the format has no name for MPICH's default. So this module repeats the choices
of MPICH 5.0 (`MPII_coll_generic_json` in libmpi; a test compares the two) for everything that hocket does not choose.

A tree maps conditions, which are checked in order, to trees; a leaf is an algorithm with its parameters. Conditions on
a size use only <=, since below a condition on the call, MPICH 5.0 reads comm_size< as <=.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

Tree: TypeAlias = "dict[str, Tree]"

_NEIGHBOURS = ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")


def use(name: str, **parameters: int | str) -> Tree:
    """Return the leaf that names an algorithm.

    Args:
        name: name of the algorithm without the prefix MPIR_.
        parameters: all parameters of the algorithm; MPICH leaves missing parameters undefined.
    """
    return {f"algorithm=MPIR_{name}": {f"{key}={value}": {} for key, value in parameters.items()}}


def either(condition: str, then: Tree, otherwise: Tree) -> Tree:
    """Return the tree of one condition, such as "comm_size=pow2" or "avg_msg_size<=8"."""
    subject = re.split("[<=]", condition)[0]
    return {condition: then, f"{subject}=any": otherwise}


def of_communicators(within: Tree, between: Tree) -> Tree:
    """Return the tree for communicators of one group and for those of two groups."""
    return {"comm_type=intra": within, "comm_type=inter": between}


def if_divisible(otherwise: Tree, cutting: Tree) -> Tree:
    """Return the tree for an algorithm that cuts an array into one part per rank.

    MPICH asserts its conditions: a built-in operation of MPI, and at least one item per rank.
    """
    return either("is_op_built_in=yes", either("count<pow2", otherwise, cutting), otherwise)


def own_choices() -> dict[str, Tree]:
    """Return MPICH's default choices, by its name of each collective."""
    found: dict[str, Tree] = {}
    for make in (_moving, _reducing, _scanning, _exchanging):
        found |= make("", "") | make("i", "sched_")
    # A blocking neighbourhood collective is the non-blocking one with a wait; its name ends in "nb".
    for name in _NEIGHBOURS:
        found[f"neighbor_{name}"] = use(f"Neighbor_{name}_allcomm_nb")
        found[f"ineighbor_{name}"] = use(f"Ineighbor_{name}_allcomm_sched_linear")
    return found


def _names(initial: str, kind: str, collective: str) -> Callable[[str], Tree]:
    """Return a function that makes a leaf from the end of an algorithm's name, such as "intra_ring"."""
    stem = (initial + collective).capitalize()

    def leaf(end: str) -> Tree:
        where, _, name = end.partition("_")
        return use(f"{stem}_{where}_{kind}{name}")

    return leaf


def _moving(initial: str, kind: str) -> dict[str, Tree]:
    """Return the choices for barrier, bcast, gather, scatter, allgather and their variants."""
    blocking = not initial
    found: dict[str, Tree] = {}

    leaf = _names(initial, kind, "barrier")
    dissemination = use("Barrier_intra_k_dissemination", k=2)
    found["barrier"] = of_communicators(
        either("comm_hierarchy=parent", leaf("intra_smp"), dissemination)
        if blocking
        else leaf("intra_recursive_doubling"),
        leaf("inter_bcast"),
    )

    leaf = _names(initial, kind, "bcast")
    short, medium = (12288, 524288) if blocking else (12287, 524287)
    ring = leaf("intra_scatter_ring_allgather")
    doubling = either(f"avg_msg_size<={medium}", leaf("intra_scatter_recursive_doubling_allgather"), ring)
    long = either(f"avg_msg_size<={short}", leaf("intra_binomial"), either("comm_size=pow2", doubling, ring))
    flat = either("comm_size<=7", leaf("intra_binomial"), long)
    found["bcast"] = of_communicators(
        flat if blocking else either("comm_hierarchy=parent", leaf("intra_smp"), flat),
        leaf("inter_remote_send_local_bcast" if blocking else "inter_flat"),
    )

    for name, for_short, for_long in (
        ("gather", *(("local_gather_remote_send", "linear") if blocking else ("short", "long"))),
        ("scatter", "remote_send_local_scatter", "linear"),
    ):
        leaf = _names(initial, kind, name)
        found[name] = of_communicators(
            leaf("intra_binomial"),
            either("total_msg_size<=2047", leaf(f"inter_{for_short}"), leaf(f"inter_{for_long}")),
        )
        found[f"{name}v"] = _names(initial, kind, f"{name}v")("allcomm_linear")

    for name, between in (("allgather", "local_gather_remote_bcast"), ("allgatherv", "remote_gather_local_bcast")):
        leaf = _names(initial, kind, name)
        ring = leaf("intra_ring")
        found[name] = of_communicators(
            either(
                "comm_size=pow2",
                either("total_msg_size<=524287", leaf("intra_recursive_doubling"), ring),
                either("total_msg_size<=81919", leaf("intra_brucks"), ring),
            ),
            leaf(f"inter_{between}"),
        )
    return {initial + name: tree for name, tree in found.items()}


def _reducing(initial: str, kind: str) -> dict[str, Tree]:
    blocking = not initial
    found: dict[str, Tree] = {}

    leaf = _names(initial, kind, "allreduce")
    doubling = leaf("intra_recursive_doubling")
    found["allreduce"] = of_communicators(
        either(
            f"avg_msg_size<={8 if blocking else 2048}",
            doubling,
            if_divisible(doubling, leaf("intra_reduce_scatter_allgather")),
        ),
        leaf("inter_reduce_exchange_bcast" if blocking else "inter_remote_reduce_local_bcast"),
    )

    leaf = _names(initial, kind, "reduce")
    binomial = leaf("intra_binomial")
    flat = either("avg_msg_size<=2048", binomial, if_divisible(binomial, leaf("intra_reduce_scatter_gather")))
    by_host = either("is_commutative=yes", leaf("intra_smp"), binomial)
    found["reduce"] = of_communicators(
        flat if blocking else either("comm_hierarchy=parent", by_host, flat),
        leaf("inter_local_reduce_remote_send"),
    )

    for name in ("reduce_scatter", "reduce_scatter_block"):
        leaf = _names(initial, kind, name)
        doubling = leaf("intra_recursive_doubling")
        in_order = either("comm_size=pow2", leaf("intra_noncommutative"), doubling)
        found[name] = of_communicators(
            either(
                "is_commutative=yes",
                either("total_msg_size<=524287", leaf("intra_recursive_halving"), leaf("intra_pairwise")),
                in_order if name.endswith("block") else either("is_block_regular=yes", in_order, doubling),
            ),
            leaf("inter_remote_reduce_local_scatter" + ("" if blocking else "v")),
        )
    return {initial + name: tree for name, tree in found.items()}


def _scanning(initial: str, kind: str) -> dict[str, Tree]:
    leaf = _names(initial, kind, "scan")
    consecutive_ranks = "comm_hierarchy=parent" if initial else "is_node_consecutive=yes"
    return {
        f"{initial}scan": either(consecutive_ranks, leaf("intra_smp"), leaf("intra_recursive_doubling")),
        f"{initial}exscan": _names(initial, kind, "exscan")("intra_recursive_doubling"),
    }


def _exchanging(initial: str, kind: str) -> dict[str, Tree]:
    blocking = not initial
    in_place = "intra_pairwise_sendrecv_replace" if blocking else "intra_inplace"
    found: dict[str, Tree] = {}

    leaf = _names(initial, kind, "alltoall")
    all_at_once = leaf("intra_scattered" if blocking else "intra_permuted_sendrecv")
    few = either("avg_msg_size<=32768", all_at_once, leaf("intra_pairwise"))
    many = either(f"avg_msg_size<={256 if blocking else 2048}", leaf("intra_brucks"), few)
    within = {"alltoall": either("comm_size<=7", few, many)}
    for name in ("alltoallv", "alltoallw"):
        within[name] = _names(initial, kind, name)("intra_scattered" if blocking else "intra_blocked")
    for name, tree in within.items():
        leaf = _names(initial, kind, name)
        found[initial + name] = of_communicators(
            either("is_sendbuf_inplace=yes", leaf(in_place), tree), leaf("inter_pairwise_exchange")
        )
    return found
