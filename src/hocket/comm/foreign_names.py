"""Error messages for mpi4py and torch.distributed names: each gives the name of the operation in hocket.

docs/migrate.md has the same names as tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

_BLOCKING = {
    "Allreduce": "all_reduce(x)", "Reduce": "reduce(x, root)", "Bcast": "broadcast(x, root)", "Barrier": "barrier()",
    "Scan": "scan(x)", "Allgather": "all_gather(out, x)", "Allgatherv": "all_gatherv(out, x, counts)",
    "Alltoall": "all_to_all(out, x)", "Alltoallv": "all_to_allv(out, x, out_counts, in_counts)",
    "Gather": "gather(out, x, root)", "Gatherv": "gatherv(out, x, counts, root)", "Scatter": "scatter(out, x, root)",
    "Scatterv": "scatterv(out, x, counts, root)", "Reduce_scatter_block": "reduce_scatter(out, x)",
    "Reduce_scatter": "reduce_scatterv(out, x, counts)",
}  # fmt: skip
_OTHERS = {
    "Get_rank": "rank", "Get_size": "size", "allreduce": "all_reduce(x) of an array, all_reduce_object(obj)",
    "bcast": "broadcast(x, root) of an array, broadcast_object(obj, root)",
    "allgather": "all_gather(out, x) of arrays, all_gather_object(obj)",
    "alltoall": "all_to_all(out, x) of arrays, all_to_all_object(objs)", "Send": "send(x, dst, tag)",
    "Recv": "recv(x, src, tag)", "Isend": "isend(x, dst, tag)", "Irecv": "irecv(x, src, tag)",
    "Sendrecv": "sendrecv(x, dst, out, src)", "Isendrecv": "batch([hk.Send(x, dst), hk.Recv(y, src)])",
    "Probe": "probe(tag)", "Iprobe": "probe(tag)", "iprobe": "probe(tag)", "Split": "split(color, key)", "Dup": "dup()",
    "Clone": "dup()", "Idup": "dup()", "Create": "group(ranks)", "Create_group": "group(ranks)",
    "Free": "finalize()", "free": "finalize()", "Disconnect": "finalize()", "Abort": "abort(reason)",
    "Revoke": "abort(reason)", "Shrink": "shrink()", "Ishrink": "shrink()",
    "Is_revoked": "barrier(), which raises Aborted",
    "Ssend": "send(x, dst, tag)", "Issend": "isend(x, dst, tag)", "Bsend": "isend(x, dst, tag)",
    "Ibsend": "isend(x, dst, tag)", "Rsend": "send(x, dst, tag)", "Irsend": "isend(x, dst, tag)",
    "ssend": "send_object(obj, dst, tag)", "issend": "isend_object(obj, dst, tag)",
    "bsend": "isend_object(obj, dst, tag)", "ibsend": "isend_object(obj, dst, tag)",
    # torch.distributed
    "get_rank": "rank", "get_world_size": "size", "all_gather_into_tensor": "all_gather(out, x)",
    "all_gather_single": "all_gather(out, x)", "reduce_scatter_tensor": "reduce_scatter(out, x)",
    "reduce_scatter_single": "reduce_scatter(out, x)", "all_to_all_single": "all_to_all(out, x)",
    "monitored_barrier": "barrier()", "new_group": "group(ranks)", "destroy_process_group": "finalize()",
}  # fmt: skip


def _asynchronous(call: str) -> str:
    return call.replace("()", "(async_op=True)") if call.endswith("()") else call.replace(")", ", async_op=True)")


def _prepared(call: str) -> str:
    name, _, arguments = call.partition("(")
    return f'prepare("{name}", {arguments}' if arguments != ")" else f'prepare("{name}")'


HERE = {
    **_BLOCKING,
    **_OTHERS,
    **{f"I{name.lower()}": _asynchronous(call) for name, call in _BLOCKING.items()},
    **{f"{name}_init": _prepared(call) for name, call in _BLOCKING.items()},
}
"""The hocket expression, after ``comm.``, for each name."""

_REDUCTIONS = ("SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR")
OF_THE_PACKAGE = {
    **{name: f"in hocket it is comm.{call}" for name, call in HERE.items()},
    **{name: f'in hocket it is op="{name.lower()}"' for name in _REDUCTIONS},
    "COMM_WORLD": "in hocket it is comm = hk.init()", "Init": "in hocket it is comm = hk.init()",
    "Finalize": "in hocket it is comm.finalize()", "ANY_TAG": "in hocket a message has one tag",
    "ANY_SOURCE": "in hocket comm.probe(tag) returns a rank whose message has arrived",
    "IN_PLACE": "in hocket every operation works in place, or writes into the array that is given",
    "init_process_group": "in hocket it is comm = hk.init()", "Wtime": "in hocket it is hk.wtime()",
    "ReduceOp": 'in hocket it is op="sum" and the like', "Waitall": "in hocket it is hk.wait_all(works)",
}  # fmt: skip
"""The message for each name of another library's module that a program looks up in hocket."""

_GRIDS = "hocket has no process topologies or neighbourhood collectives; compute the ranks yourself and use batch()"
_OTHER_WORLDS = "hocket cannot spawn or connect to other jobs; start all ranks together and use split()"
_NOTES = "hocket communicators have no user-defined attributes, info objects or names"
_ERRORS = "hocket has no error handlers; every error is raised as an exception"
_FAILURES = "use shrink(), which returns a communicator of the surviving ranks"
_EXSCAN = "hocket has no exclusive scan; call scan(x) and subtract this rank's own values"
_TYPES = "hocket has no datatype per block; use all_to_allv with one dtype, or on bytes"
_MESSAGES = "hocket has no matched probe; use probe(tag), then recv"
_PERSISTENT = "hocket has no persistent messages; use isend and irecv, or batch()"
_REPLACE = "hocket does not receive into the array being sent; use sendrecv with a second array"
_HANDLES = "hocket communicators have no C or Fortran handles"
NOT_HERE = {
    name: reason
    for reason, names in {
        _GRIDS: "Cart_map Create_cart Create_dist_graph Create_dist_graph_adjacent Create_graph Graph_map Get_topology "
        "is_topo topology Split_type",
        _OTHER_WORLDS: "Accept Connect Create_from_group Create_intercomm Get_parent Is_inter Is_intra Join Spawn "
        "Spawn_multiple is_inter is_intra",
        _NOTES: "Create_keyval Delete_attr Dup_with_info Free_keyval Get_attr Get_info Get_name Idup_with_info "
        "Set_attr Set_info Set_name info name Compare Get_group",
        _ERRORS: "Call_errhandler Create_errhandler Get_errhandler Set_errhandler",
        _FAILURES: "Ack_failed Agree Get_failed Iagree",
        _EXSCAN: "Exscan Exscan_init Iexscan exscan",
        _TYPES: "Alltoallw Alltoallw_init Ialltoallw",
        _MESSAGES: "Improbe Mprobe improbe mprobe",
        _PERSISTENT: "Attach_buffer Bsend_init Detach_buffer Flush_buffer Iflush_buffer Precv_init Psend_init "
        "Recv_init Rsend_init Send_init Ssend_init",
        _REPLACE: "Isendrecv_replace Sendrecv_replace",
        _HANDLES: "f2py fromhandle fromint handle py2f toint",
    }.items()
    for name in names.split()
}
"""The message for each mpi4py name without an equivalent."""


class _ForeignName:
    """An attribute that raises AttributeError with a helpful message, so `hasattr` is False."""

    def __init__(self, name: str, hint: str) -> None:
        self._name, self._hint = name, hint

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}; {self._hint}")


class ForeignNames:
    """Mixin with the messages. Each name is a descriptor: `__getattr__` would slow down every attribute access."""

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in HERE and name not in NOT_HERE]


for _name, _hint in ({name: f"in hocket it is comm.{call}" for name, call in HERE.items()} | NOT_HERE).items():
    setattr(ForeignNames, _name, _ForeignName(_name, _hint))
