"""The operations of torch.distributed that take ``backend=`` in `hocket.torch.dist`, each with an example."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

# What each example does between making the process group and destroying it, on two ranks: the output is equal on both.
EXAMPLES: Mapping[str, str] = {
    "all_gather": """
        >>> outputs = [torch.empty(2) for _ in range(2)]
        >>> dist.all_gather(outputs, torch.full((2,), 10.0 * comm.rank), backend="shm")
        >>> outputs
        [tensor([0., 0.]), tensor([10., 10.])]
    """,
    "all_gather_coalesced": """
        >>> outputs = [[torch.empty(1), torch.empty(2)] for _ in range(2)]
        >>> dist.all_gather_coalesced(outputs, [torch.ones(1), torch.full((2,), 10.0 * comm.rank)], backend="shm")
        >>> outputs[1]
        [tensor([1.]), tensor([10., 10.])]
    """,
    "all_gather_into_tensor": """
        >>> output = torch.empty(4)
        >>> dist.all_gather_into_tensor(output, torch.full((2,), 10.0 * comm.rank), backend="shm")
        >>> output
        tensor([ 0.,  0., 10., 10.])
    """,
    "all_gather_object": """
        >>> objects = [None, None]
        >>> dist.all_gather_object(objects, {"rank": comm.rank}, backend="shm")
        >>> objects
        [{'rank': 0}, {'rank': 1}]
    """,
    "all_gather_single": """
        >>> output = torch.empty(4)
        >>> dist.all_gather_single(output, torch.full((2,), 10.0 * comm.rank), backend="shm")
        >>> output
        tensor([ 0.,  0., 10., 10.])
    """,
    "all_reduce": """
        >>> x = torch.full((2,), 1.0 + comm.rank)
        >>> dist.all_reduce(x, dist.ReduceOp.SUM, backend="shm")
        >>> x
        tensor([3., 3.])
    """,
    "all_reduce_coalesced": """
        >>> tensors = [torch.ones(1), torch.full((2,), 1.0 + comm.rank)]
        >>> dist.all_reduce_coalesced(tensors, backend="shm")
        >>> tensors
        [tensor([2.]), tensor([3., 3.])]
    """,
    "all_to_all": """
        >>> outputs = [torch.empty(1), torch.empty(1)]
        >>> dist.all_to_all(outputs, [torch.tensor([0.0]), torch.tensor([1.0])], backend="shm")
        >>> [output.item() == comm.rank for output in outputs]
        [True, True]
    """,
    "all_to_all_single": """
        >>> output = torch.empty(2)
        >>> dist.all_to_all_single(output, torch.tensor([0.0, 1.0]), backend="shm")
        >>> (output == comm.rank).tolist()
        [True, True]
    """,
    "barrier": """
        >>> dist.barrier(backend="shm")
        >>> hk.torch.communicator().records()[-1].op
        'barrier'
    """,
    "batch_isend_irecv": """
        >>> x = torch.empty(1)
        >>> send = dist.P2POp(dist.isend, torch.tensor([7.0]), 1 - comm.rank)
        >>> receive = dist.P2POp(dist.irecv, x, 1 - comm.rank)
        >>> works = dist.batch_isend_irecv([send, receive], backend="shm")
        >>> [work.wait() for work in works], x
        ([True, True], tensor([7.]))
    """,
    "broadcast": """
        >>> x = torch.full((2,), 1.0 + comm.rank)
        >>> dist.broadcast(x, src=1, backend="shm")
        >>> x
        tensor([2., 2.])
    """,
    "broadcast_object_list": """
        >>> objects = [{"step": comm.rank}]
        >>> dist.broadcast_object_list(objects, src=1, backend="shm")
        >>> objects
        [{'step': 1}]
    """,
    "gather": """
        >>> outputs = [torch.empty(1), torch.empty(1)] if comm.rank == 0 else None
        >>> dist.gather(torch.tensor([10.0 * comm.rank]), outputs, dst=0, backend="shm")
        >>> outputs == ([torch.tensor([0.0]), torch.tensor([10.0])] if comm.rank == 0 else None)
        True
    """,
    "gather_object": """
        >>> objects = [None, None] if comm.rank == 0 else None
        >>> dist.gather_object({"rank": comm.rank}, objects, dst=0, backend="shm")
        >>> objects == ([{"rank": 0}, {"rank": 1}] if comm.rank == 0 else None)
        True
    """,
    "irecv": """
        >>> x = torch.empty(1)
        >>> receive = dist.irecv(x, src=1 - comm.rank, backend="shm")
        >>> send = dist.isend(torch.tensor([7.0]), dst=1 - comm.rank, backend="shm")
        >>> receive.wait(), send.wait(), x
        (True, True, tensor([7.]))
    """,
    "isend": """
        >>> x = torch.empty(1)
        >>> send = dist.isend(torch.tensor([7.0]), dst=1 - comm.rank, backend="shm")
        >>> dist.recv(x, src=1 - comm.rank, backend="shm") == 1 - comm.rank
        True
        >>> send.wait(), x
        (True, tensor([7.]))
    """,
    "recv": """
        >>> x = torch.full((2,), 5.0 + comm.rank)
        >>> _ = dist.send(x, dst=1, backend="shm") if comm.rank == 0 else dist.recv(x, src=0, backend="shm")
        >>> x
        tensor([5., 5.])
    """,
    "recv_object_list": """
        >>> objects = [["weights", 3], [None, None]][comm.rank]
        >>> _ = dist.send_object_list(objects, 1) if comm.rank == 0 else dist.recv_object_list(objects, 0)
        >>> objects
        ['weights', 3]
    """,
    "reduce": """
        >>> x = torch.full((2,), 1.0 + comm.rank)
        >>> dist.reduce(x, dst=1, backend="shm")
        >>> comm.rank == 0 or x.tolist() == [3.0, 3.0]
        True
    """,
    "reduce_scatter": """
        >>> output = torch.empty(1)
        >>> dist.reduce_scatter(output, [torch.tensor([1.0]), torch.tensor([2.0])], backend="shm")
        >>> output.item() == [2.0, 4.0][comm.rank]
        True
    """,
    "reduce_scatter_single": """
        >>> output = torch.empty(1)
        >>> dist.reduce_scatter_single(output, torch.tensor([1.0, 2.0]), backend="shm")
        >>> output.item() == [2.0, 4.0][comm.rank]
        True
    """,
    "reduce_scatter_tensor": """
        >>> output = torch.empty(1)
        >>> dist.reduce_scatter_tensor(output, torch.tensor([1.0, 2.0]), backend="shm")
        >>> output.item() == [2.0, 4.0][comm.rank]
        True
    """,
    "scatter": """
        >>> output = torch.empty(1)
        >>> inputs = [torch.tensor([3.0]), torch.tensor([4.0])] if comm.rank == 0 else None
        >>> dist.scatter(output, inputs, src=0, backend="shm")
        >>> output.item() == [3.0, 4.0][comm.rank]
        True
    """,
    "scatter_object_list": """
        >>> objects = [None]
        >>> dist.scatter_object_list(objects, ["a", "b"] if comm.rank == 0 else None, src=0, backend="shm")
        >>> objects == [["a"], ["b"]][comm.rank]
        True
    """,
    "send": """
        >>> x = torch.full((2,), 5.0 + comm.rank)
        >>> _ = dist.send(x, dst=1, backend="shm") if comm.rank == 0 else dist.recv(x, src=0, backend="shm")
        >>> x
        tensor([5., 5.])
    """,
    "send_object_list": """
        >>> objects = [["weights", 3], [None, None]][comm.rank]
        >>> _ = dist.send_object_list(objects, 1) if comm.rank == 0 else dist.recv_object_list(objects, 0)
        >>> objects
        ['weights', 3]
    """,
}

_BEGIN = """\
>>> import torch
>>> dist = hk.torch.dist
>>> dist.init_process_group(store=dist.FileStore("{name}", 2), rank=comm.rank, world_size=2)
"""
_END = ">>> dist.destroy_process_group()"


def docstring_of(function: Callable[..., Any]) -> str:
    """Return torch's docstring of an operation with the example that has ``backend=``, instead of torch's own."""
    name = function.__name__
    summary = f"Call ``torch.distributed.{name}``; ``backend=`` names the library that carries the operation."
    example = _BEGIN.format(name=name) + inspect.cleandoc(EXAMPLES[name]) + f"\n{_END}"
    description = without_examples(inspect.getdoc(function) or "")
    return "\n\n".join([summary, description, f"Examples:\n{textwrap.indent(example, '    ')}"])


def without_examples(docstring: str) -> str:
    """Return a docstring without its sections of examples, which begin with a line ``Examples:`` or ``Example::``."""
    kept = []
    is_example = False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            is_example = re.fullmatch(r"Examples?::?", line) is not None
        if not is_example:
            kept.append(line)
    return "\n".join(kept).strip()
