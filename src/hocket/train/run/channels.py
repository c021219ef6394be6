"""Messages with values and gradients between stages, over their own communicator."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils import _pytree as pytree

from hocket import _native
from hocket.comm import Communicator
from hocket.errors import (
    CommTimeout,
    HocketError,
    InvalidArgument,
    InvalidModel,
    InvalidState,
    PeerFailure,
    ResourceExhausted,
)
from hocket.pipeline.placement import Placement
from hocket.train.model.specs import NUMBERS, LeafSpec, ValueSpec, flatten, number_of
from hocket.train.model.split_model import Hop
from hocket.train.run import lossless
from hocket.train.run.backward import Gradients
from hocket.train.run.messages import message_nbytes, pack, unpack
from hocket.train.run.regions import name_of_message

_MOST_TAGS = 1 << 31
Leaves: TypeAlias = list[torch.Tensor]


class Parcel(NamedTuple):
    """One transfer over a hop: a value of one micro-batch, or its gradient in the other direction.

    Args:
        hop: index of the hop.
        pipe, micro_batch: pipe and micro-batch of the value.
        is_gradient: whether it is the gradient, which is sent back.
    """

    hop: int
    pipe: int
    micro_batch: int
    is_gradient: bool


@dataclass(frozen=True)
class _Sent:
    work: Any
    buffer: torch.Tensor
    is_shared: bool
    description: str


@dataclass(frozen=True)
class _Posted:
    work: Any
    buffer: torch.Tensor
    leaf: LeafSpec
    room: int | None  # bytes of packed content that the work receives; None: the leaf comes as it is


class Channels:
    """Sends parcels as soon as they are computed, and receives them ahead of their use.

    Every parcel has its own tag, so that no order of sends and receives can hang. A sent value is copied into memory
    that the ranks of the host share; the receiver reads it there while the sender computes.

    Args:
        comm: a communicator of the ranks of one pipeline, which nothing else uses.
        placement: placement of the stages.
        hops: hops of the model.
        num_micro_batches: number of micro-batches of a step.
        timeout_s: timeout of every wait, in seconds.
        ahead: number of receives that are posted in advance.
        name_of: returns the name of a rank of `comm` in messages.
        messages: "lossless": tensors between ranks on different hosts are packed; None: they are sent as they are.

    Attributes:
        rooms: what is known of packed tensors.

    Raises:
        InvalidArgument: a step has more parcels than tags exist.
    """

    def __init__(
        self,
        comm: Communicator,
        placement: Placement,
        hops: tuple[Hop, ...],
        num_micro_batches: int,
        timeout_s: float,
        ahead: int,
        name_of: Callable[[int], str],
        messages: str | None = None,
    ) -> None:
        self._comm = comm
        self._ranks = placement.ranks
        self._hops = hops
        self._num_micro_batches = num_micro_batches
        self._num_pipes = placement.num_pipes
        if 4 * len(hops) * self._num_pipes * num_micro_batches >= _MOST_TAGS:
            raise InvalidArgument(
                f"{len(hops)} values between stages x {num_micro_batches} micro-batches x {self._num_pipes} pipes are "
                f"too many; the product must be less than {_MOST_TAGS >> 2}"
            )
        self._timeout_s = timeout_s
        self._ahead = ahead
        self._name_of = name_of
        self._local: dict[Parcel, Gradients] = {}  # parcels of this rank's own stages, or received and kept
        self._posted: dict[Parcel, list[_Posted]] = {}  # by leaf
        self._to_post: deque[tuple[Parcel, ValueSpec]] = deque()
        self._sent: deque[_Sent] = deque()
        self._spare: dict[int, list[torch.Tensor]] = {}
        self._step = 0
        self._shares = comm.num_hosts == 1 and comm.size > 1
        self._packs_to = set(range(comm.size)).difference(comm._ranks_of_host) if messages else set()
        self.rooms = lossless.Rooms()

    @property
    def rank(self) -> int:
        """This rank of the pipeline."""
        return self._comm.rank

    def source(self, parcel: Parcel) -> int:
        """Return the rank that sends a parcel."""
        hop = self._hops[parcel.hop]
        return self._ranks[parcel.pipe][hop.to_stage if parcel.is_gradient else hop.from_stage]

    def destination(self, parcel: Parcel) -> int:
        """Return the rank that receives a parcel."""
        hop = self._hops[parcel.hop]
        return self._ranks[parcel.pipe][hop.from_stage if parcel.is_gradient else hop.to_stage]

    def expect(self, parcels: Iterable[tuple[Parcel, ValueSpec]], step: int = 0) -> None:
        """Set the parcels that this rank will take in a step, in order; parcels from its own stages are ignored.

        Args:
            parcels: parcels and the specs of their values.
            step: number of the step, for the recorder.
        """
        self._step = step
        self.rooms.begin_step()
        self._to_post = deque((parcel, spec) for parcel, spec in parcels if self.source(parcel) != self._comm.rank)
        for _ in range(self._ahead):
            self._post_next()

    def send(self, parcel: Parcel, spec: ValueSpec, leaves: Gradients, why: str) -> None:
        """Send a parcel. The tensors may be written to afterwards, unless the parcel stays on this rank.

        Args:
            parcel: the parcel.
            spec: spec of the value.
            leaves: leaves of the value; of a gradient, those that have one. None: autograd computed no gradient.
            why: the sending action, for messages.

        Raises:
            InvalidModel: the value does not have its spec.
        """
        destination = self.destination(parcel)
        if destination == self._comm.rank:
            self._local[parcel] = leaves
            return
        with _native.region(name_of_message(True, parcel.is_gradient), self._step):
            self._send(parcel, spec, leaves, why, destination)

    def _send(self, parcel: Parcel, spec: ValueSpec, leaves: Gradients, why: str, destination: int) -> None:
        self._release_finished_sends()
        for number, (leaf, each) in enumerate(zip(leaves, _leaves_of(parcel, spec), strict=True)):
            if leaf is not None and (leaf.shape, leaf.dtype) != (each.shape, each.dtype):
                raise InvalidModel(
                    f"{self._describe(parcel)} is {leaf.dtype} {list(leaf.shape)}; by the shapes of the stage's inputs "
                    f"it must be {each.dtype} {list(each.shape)}"
                )
            room = self._room(parcel, number, each, destination)
            if room is None:
                size = message_nbytes(each.shape, each.dtype)
                buffer, is_shared = self._buffer(size)
                pack(leaf, buffer[:size])
                sent = [(buffer[:size], self._tag(parcel))]
            else:
                buffer, is_shared = self._buffer(lossless.message_nbytes(each.shape, each.dtype))
                nbytes = lossless.pack(leaf, each.shape, buffer)
                self.rooms.note(self._key(parcel, number), each.shape, each.dtype, nbytes)
                parts = lossless.parts_of(buffer, len(each.shape), room, nbytes)
                self.rooms.count(each.shape, each.dtype, parts)
                sent = [(part, self._tag(parcel, is_rest)) for is_rest, part in enumerate(parts)]
            for part, tag in sent:
                work = self._comm.isend(part, destination, tag=tag, timeout=self._timeout_s)
                is_last = part is sent[-1][0]
                self._sent.append(_Sent(work, buffer, is_shared and is_last, f"{self._describe(parcel)} ({why})"))

    def take(self, parcel: Parcel, why: str) -> Gradients:
        """Receive a parcel and return its leaves, which belong to the caller, unless this rank sent them.

        Raises:
            CommTimeout: it did not arrive in time; the error names its sender and the waiting action.
            PeerFailure: the sender has died.
            InvalidState: the parcel was not among those of `expect`.
        """
        local = self._local.pop(parcel, None)
        if local is not None:
            return local
        with _native.region(name_of_message(False, parcel.is_gradient), self._step):
            return self._receive(parcel, why)

    def _receive(self, parcel: Parcel, why: str) -> Gradients:
        while parcel not in self._posted:
            if not self._to_post:
                raise InvalidState(f"{self._describe(parcel)} is taken, and `expect` did not have it ({why})")
            self._post_next()
        receives = self._posted.pop(parcel)
        self._post_next()
        rests = []
        for number, each in enumerate(receives):
            self._wait(each.work, self.source(parcel), why, parcel)
            if each.room is not None:
                rests += self._rest(parcel, number, each, each.room)
        for work in rests:
            self._wait(work, self.source(parcel), why, parcel)
        return [
            (unpack if each.room is None else lossless.unpack)(each.buffer, each.leaf.shape, each.leaf.dtype)
            for each in receives
        ]

    def _rest(self, parcel: Parcel, number: int, received: _Posted, room: int) -> list[Any]:
        """Begin to receive what a packed leaf's first message had no room for; return the works."""
        leaf = received.leaf
        nbytes = lossless.packed_nbytes(received.buffer, leaf.shape, leaf.dtype)
        self.rooms.note(self._key(parcel, number), leaf.shape, leaf.dtype, nbytes)
        rest = lossless.parts_of(received.buffer, len(leaf.shape), room, nbytes)[1:]
        tag = self._tag(parcel, is_rest=True)
        return [self._comm.irecv(part, self.source(parcel), tag=tag, timeout=self._timeout_s) for part in rest]

    def keep(self, parcel: Parcel, leaves: Gradients) -> None:
        """Keep a received parcel for the action that takes it next."""
        self._local[parcel] = leaves

    def finish(self) -> None:
        """Wait until all sent parcels have been received."""
        while self._sent:
            sent = self._sent[0]
            self._wait(sent.work, None, f"no rank has received {sent.description}")
            self._release(self._sent.popleft())

    def _post_next(self) -> None:
        if not self._to_post:
            return
        parcel, spec = self._to_post.popleft()
        posted, source = [], self.source(parcel)
        for number, leaf in enumerate(_leaves_of(parcel, spec)):
            room = self._room(parcel, number, leaf, source)
            if room is None:
                buffer = part = torch.empty(message_nbytes(leaf.shape, leaf.dtype), dtype=torch.uint8)
            else:
                buffer = torch.empty(lossless.message_nbytes(leaf.shape, leaf.dtype), dtype=torch.uint8)
                part = lossless.parts_of(buffer, len(leaf.shape), room, 0)[0]
            work = self._comm.irecv(part, source, tag=self._tag(parcel), timeout=self._timeout_s)
            posted.append(_Posted(work, buffer, leaf, room))
        self._posted[parcel] = posted

    def _room(self, parcel: Parcel, number: int, leaf: LeafSpec, other: int) -> int | None:
        """Return the bytes of packed content that a leaf's first message has; None: it is sent as it is."""
        return self.rooms.room(self._key(parcel, number), leaf.shape, leaf.dtype) if other in self._packs_to else None

    def _key(self, parcel: Parcel, number: int) -> tuple[int, int, bool, int]:
        return parcel.hop, parcel.pipe, parcel.is_gradient, number

    def _tag(self, parcel: Parcel, is_rest: int = False) -> int:
        number = (parcel.hop * self._num_pipes + parcel.pipe) * self._num_micro_batches + parcel.micro_batch
        return 4 * number + 2 * is_rest + parcel.is_gradient

    def _buffer(self, size: int) -> tuple[torch.Tensor, bool]:
        """Return an unused buffer of `size` bytes or somewhat more, and whether it is shared memory."""
        size = _rounded(size)
        spare = self._spare.get(size)
        if spare:
            return spare.pop(), True
        if self._shares:
            try:
                return self._comm.empty(size, torch.uint8), True
            except ResourceExhausted:
                self._shares = False  # from now on, a receiver may have to wait until the sender drives the message
        return torch.empty(size, dtype=torch.uint8), False

    def _release_finished_sends(self) -> None:
        while self._sent and self._sent[0].work.done:
            sent = self._sent.popleft()
            sent.work.wait()
            self._release(sent)

    def _release(self, sent: _Sent) -> None:
        if sent.is_shared:
            self._spare.setdefault(len(sent.buffer), []).append(sent.buffer)

    def _wait(self, work: Any, source: int | None, context: str, parcel: Parcel | None = None) -> None:
        try:
            work.wait(timeout=self._timeout_s)
        except HocketError as error:
            if parcel is not None:
                context += f" waits for {self._describe(parcel)}"
            message = f"{self._name_of(self._comm.rank)}: {context}: {error}"
            if isinstance(error, (CommTimeout, PeerFailure)):
                raise type(error)(message, error.ranks if source is None else (source,)) from error
            raise type(error)(message) from error

    def _describe(self, parcel: Parcel) -> str:
        hop = self._hops[parcel.hop]
        ends = (hop.to_stage, hop.from_stage) if parcel.is_gradient else (hop.from_stage, hop.to_stage)
        pipe = f" of pipe {parcel.pipe}" if self._num_pipes > 1 else ""
        return (
            f"{'the gradient of ' if parcel.is_gradient else ''}{hop.value!r} of micro-batch {parcel.micro_batch} from "
            f"stage {ends[0]}{pipe} on {self._name_of(self.source(parcel))} to stage {ends[1]} on "
            f"{self._name_of(self.destination(parcel))}"
        )


def _leaves_of(parcel: Parcel, spec: ValueSpec) -> list[LeafSpec]:
    return [leaf for leaf in spec.leaves if leaf.has_gradient or not parcel.is_gradient]


def _rounded(size: int) -> int:
    """Round up to one of eight sizes between powers of two, so that batches of other lengths can reuse buffers."""
    step = max(64, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def to_leaves(value: Any) -> Leaves:
    """Return the leaves of a value as tensors that can be sent."""
    return [
        leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf or 0, dtype=NUMBERS[type(leaf)])
        for leaf in flatten(value)[0]
    ]


def from_leaves(leaves: Sequence[Any], spec: ValueSpec) -> Any:
    """Return the value with these received leaves."""
    restored = [
        leaf if each.number is None else number_of(leaf, each.number)
        for leaf, each in zip(leaves, spec.leaves, strict=True)
    ]
    return pytree.tree_unflatten(restored, spec.tree)
