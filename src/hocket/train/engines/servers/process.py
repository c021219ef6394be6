"""The process of a parameter server: a gRPC server that ends with the rank that started it.

Its task comes as JSON in the standard input. It ends when something else comes there, when that ends, or when the rank
that started it is no longer its parent: processes that the rank has forked may keep its pipe open.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import select
import signal
import struct
import sys
import threading
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import IO, Any

import torch

from hocket.train.engines.servers.messages import (
    HEAD_NBYTES,
    BadMessage,
    Content,
    MessageHead,
    MessageKind,
    key_for,
    pack_answer,
)
from hocket.train.engines.servers.optimizers import ServerUpdate
from hocket.train.engines.servers.refused import Refused
from hocket.train.engines.servers.shared_memory import BlockAddress, MemoryBlock
from hocket.train.engines.servers.sums import ByMemory, ByMessage, Carrier, Sums
from hocket.train.engines.servers.updates import Updates

_MOST_CALLS = 1 << 30
_LOOK_S = 1.0
_LENGTH = struct.Struct("<Q")
SERVICE, EXCHANGE = "hocket.ParameterServer", "Exchange"


@dataclass(frozen=True)
class GradientServerTask:
    """What a parameter server has to do.

    Args:
        address: address that it listens at.
        port: its port; 0: any free one.
        key: key of its messages, in hexadecimal digits.
        num_ranks: number of ranks.
        parcels: number, number of elements and data type (such as "float32") of each of its parcels.
        most_nbytes: most bytes of a message.
        blocks: process, file and number of bytes of each rank's block of shared memory; empty: messages have elements.
        places: for each of all parcels, its first byte in every block, and the end of the last one.
        relayed: ranks whose elements a library brings into those blocks.
        update_nbytes: number of bytes that follow the task: a pickled `Updating`; 0: the server only adds.
        parent: process of the rank that starts it.
        cpus: processors that it may use; empty: those of its parent.
    """

    address: str
    port: int
    key: str = field(repr=False)
    num_ranks: int
    parcels: list[tuple[int, int, str]]
    most_nbytes: int
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    relayed: list[int] = field(default_factory=list)
    update_nbytes: int = 0
    parent: int = field(default_factory=os.getpid)
    cpus: list[int] = field(default_factory=list)

    def dump(self) -> bytes:
        """Return it as JSON behind its length."""
        content = json.dumps(asdict(self)).encode()
        return _LENGTH.pack(len(content)) + content


@dataclass(frozen=True)
class Updating:
    """What a server needs that changes parameters.

    Args:
        update: its part of the optimizer.
        tensors: numbers of the tensors of each of its parcels.
        num_required: see `Updates`.
    """

    update: ServerUpdate
    tensors: dict[int, list[int]]
    num_required: int | None


def main() -> None:
    """Serve until the rank that started this process ends it, or ends."""
    task = GradientServerTask(**json.loads(_read(_LENGTH.unpack(_read(_LENGTH.size))[0])))
    if task.cpus:
        with suppress(OSError):  # they may be taken away at any time
            os.sched_setaffinity(0, task.cpus)
    # Ctrl-C goes to all processes of a terminal; ranks may still need this one to end in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # It comes through the pipe of the rank that started this process.
    updating = pickle.loads(_read(task.update_nbytes)) if task.update_nbytes else None
    threading.Thread(target=_end_with_rank, args=(task.parent,), daemon=True).start()
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    if updating is not None:
        # The first step of any optimizer imports much, which no rank should wait for in the first step of its training.
        torch.optim.SGD([torch.zeros(1)], lr=0.0).step()
    with os.fdopen(int(sys.argv[1]), "w") as report:
        asyncio.run(_serve(task, updating, report))


def _read(nbytes: int) -> bytearray:
    """Read from the standard input, and no byte more."""
    content = bytearray()
    while len(content) < nbytes:
        read = os.read(0, min(nbytes - len(content), 1 << 20))
        if not read:
            sys.exit("the rank that started this parameter server has ended")
        content += read
    return content


def _end_with_rank(parent: int) -> None:
    while os.getppid() == parent and not select.select([0], [], [], _LOOK_S)[0]:
        pass
    os._exit(0)


async def _serve(task: GradientServerTask, updating: Updating | None, report: IO[str]) -> None:
    import grpc

    torch.set_num_threads(1)
    key = bytes.fromhex(task.key)
    calls, answers = key_for(key, is_answer=False), key_for(key, is_answer=True)
    store: Sums | Updates
    own: MemoryBlock | None = None
    if updating is None:
        parcels = {number: (numel, getattr(torch, dtype)) for number, numel, dtype in task.parcels}
        carrier: Carrier = ByMessage(parcels)
        if task.blocks:
            own = MemoryBlock(task.places[-1])
            blocks = [MemoryBlock(nbytes, BlockAddress(pid, fd, nbytes)) for pid, fd, nbytes in task.blocks]
            carrier = ByMemory(parcels, task.places, blocks, own)
        pack = partial(pack_answer, answers, MessageKind.VALUES)
        store = Sums(task.num_ranks, parcels, carrier, pack, task.relayed)
    else:
        of_parcels = {number: (updating.tensors[number], getattr(torch, dtype)) for number, _, dtype in task.parcels}
        store = Updates(task.num_ranks, updating.num_required, of_parcels, updating.update)

    async def exchange(message: bytes, context: Any) -> bytes:
        try:
            head = MessageHead.unpack(message, calls)
        except BadMessage as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        try:
            answer = await _answer(store, head, memoryview(message)[HEAD_NBYTES:], answers)
        except Refused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return answer

    server = grpc.aio.server(options=channel_options(task.most_nbytes))
    handler = grpc.unary_unary_rpc_method_handler(exchange)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {EXCHANGE: handler})])
    try:
        host = f"[{task.address}]" if ":" in task.address else task.address
        port = server.add_insecure_port(f"{host}:{task.port}")
    except RuntimeError:
        port = 0
    if port:
        await server.start()
    print(port, *(() if own is None else (own.address.fd, own.address.nbytes)), file=report, flush=True)
    report.close()
    if port:
        await server.wait_for_termination()


async def _answer(store: Sums | Updates, head: MessageHead, content: memoryview, key: bytes) -> bytes:
    if isinstance(store, Sums) and head.kind == MessageKind.GRADIENTS:
        return await store.add(head.rank, head.parcel, head.step, content)
    if isinstance(store, Sums) and head.kind == MessageKind.ARRIVED:
        return await store.arrive(head.rank, head.parcel, head.step)
    return pack_answer(key, head.kind.answer, head.parcel, head.step, await _content(store, head, content))


async def _content(store: Sums | Updates, head: MessageHead, content: memoryview) -> Content:
    if head.kind == MessageKind.WHO_IS_LATE:
        return b"".join(rank.to_bytes(4, "little") for rank in store.late(head.parcel))
    if isinstance(store, Sums):
        raise Refused(f"this server takes no calls of kind {head.kind.name}")
    if head.kind == MessageKind.GRADIENTS:
        return await store.add(head.rank, head.parcel, head.step, content)
    if head.kind == MessageKind.SETTINGS:
        store.set(head.rank, head.step, content)
    elif head.kind == MessageKind.PULL:
        return store.values(head.parcel)
    elif head.kind == MessageKind.STATE:
        return store.state(head.parcel, head.step)
    elif head.kind == MessageKind.LEAVE:
        store.leave(head.rank)
    else:
        raise Refused(f"a server takes no calls of kind {head.kind.name}")
    return b""


def channel_options(most_nbytes: int) -> list[tuple[str, int]]:
    """Return the options of gRPC for both ends.

    Proxies of the environment (http_proxy) are left aside: the ranks of a job reach each other directly. Two servers
    never share a port. All calls of a step may wait at once: by default a server drops some of more than 1,000.
    """
    return [
        ("grpc.max_receive_message_length", most_nbytes),
        ("grpc.max_send_message_length", most_nbytes),
        ("grpc.enable_http_proxy", 0),
        ("grpc.so_reuseport", 0),
        ("grpc.server.max_pending_requests", _MOST_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MOST_CALLS),
    ]


if __name__ == "__main__":
    main()
