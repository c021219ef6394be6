"""MPICH's own choices, as a tree of its file for choices: a file has to make all of them.

MPICH looks every collective up in the file that it was given, the non-blocking ones and those between groups included;
what it does not find there ends the program, and there is no name for "as you would". So what this project has no
opinion on is said here as MPICH 5.0 decides it (`MPII_coll_generic_json` in libmpi; a test compares the two).

A tree maps conditions, asked in order, to trees; a leaf is an algorithm with its parameters. Conditions on a size are
written with <= alone: where they stand below a condition on the call, MPICH 5.0 takes comm_size< for <=.
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
        name: without the prefix MPIR_.
        parameters: all that the algorithm has; MPICH leaves those undefined that are not said.
    """
    return {f"algorithm=MPIR_{name}": {f"{key}={value}": {} for key, value in parameters.items()}}


def either(condition: str, then: Tree, otherwise: Tree) -> Tree:
    """Return the tree of one question, such as "comm_size=pow2" or "avg_msg_size<=8"."""
    subject = re.split("[<=]", condition)[0]
    return {condition: then, f"{subject}=any": otherwise}


def of_communicators(within: Tree, between: Tree) -> Tree:
    """Return the tree for communicators of one group and of two."""
    return {"comm_type=intra": within, "comm_type=inter": between}


def if_divisible(otherwise: Tree, cutting: Tree) -> Tree:
    """Return the tree for what cuts an array into a part for each rank: that takes an operation of MPI's, and an item
    for each, which MPICH asserts."""
    return either("is_op_built_in=yes", either("count<pow2", otherwise, cutting), otherwise)


def own_choices() -> dict[str, Tree]:
    """Return by MPICH's name of each collective how it chooses by itself."""
    found: dict[str, Tree] = {}
    for make in (_moving, _reducing, _scanning, _exchanging):
        found |= make("", "") | make("i", "sched_")
    # Between neighbours the blocking ones are the others with a wait; "nb" says so.
    for name in _NEIGHBOURS:
        found[f"neighbor_{name}"] = use(f"Neighbor_{name}_allcomm_nb")
        found[f"ineighbor_{name}"] = use(f"Ineighbor_{name}_allcomm_sched_linear")
    return found


def _names(initial: str, kind: str, collective: str) -> Callable[[str], Tree]:
    """Return what makes a leaf of the end of an algorithm's name, such as "intra_ring"."""
    stem = (initial + collective).capitalize()

    def leaf(end: str) -> Tree:
        where, _, name = end.partition("_")
        return use(f"{stem}_{where}_{kind}{name}")

    return leaf


def _moving(initial: str, kind: str) -> dict[str, Tree]:
    """Barrier, bcast, gather, scatter, allgather and their forms."""
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

    for name, short_way, long_way in (
        ("gather", *(("local_gather_remote_send", "linear") if blocking else ("short", "long"))),
        ("scatter", "remote_send_local_scatter", "linear"),
    ):
        leaf = _names(initial, kind, name)
        found[name] = of_communicators(
            leaf("intra_binomial"),
            either("total_msg_size<=2047", leaf(f"inter_{short_way}"), leaf(f"inter_{long_way}")),
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
    ranks_of_a_host_follow = "comm_hierarchy=parent" if initial else "is_node_consecutive=yes"
    return {
        f"{initial}scan": either(ranks_of_a_host_follow, leaf("intra_smp"), leaf("intra_recursive_doubling")),
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
