"""Values and gradients on their way between stages, over a communicator of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils import _pytree as pytree

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
from hocket.train.run.backward import Gradients
from hocket.train.run.messages import message_nbytes, pack, unpack

_MOST_TAGS = 1 << 31
Leaves: TypeAlias = list[torch.Tensor]


class Parcel(NamedTuple):
    """What crosses an edge once: a value of one micro-batch, or the gradient of it on its way back.

    Args:
        hop: number of the edge, in the model's hops.
        pipe, micro_batch: that it is of.
        is_gradient: whether it goes back.
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
    words: str


class Channels:
    """Sends parcels as soon as they are there, and receives them ahead of their use.

    Every parcel has a tag of its own, so that no order of sends and receives can hang. What is sent is copied into
    memory that the ranks of the host share, out of which its receiver reads it while its sender computes.

    Args:
        comm: of the ranks of one pipeline; nothing else uses it.
        placement: of the stages.
        hops: of the model.
        num_micro_batches: of a step.
        timeout_s: that anything is waited for.
        ahead: how many parcels are received before they are asked for.
        name_of: a rank of `comm` as it is called in messages.

    Raises:
        InvalidArgument: there are more parcels than tags.
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
    ) -> None:
        self._comm = comm
        self._ranks = placement.ranks
        self._hops = hops
        self._num_micro_batches = num_micro_batches
        self._num_pipes = placement.num_pipes
        if 2 * len(hops) * self._num_pipes * num_micro_batches >= _MOST_TAGS:
            raise InvalidArgument(
                f"{len(hops)} values between stages in {num_micro_batches} micro-batches and {self._num_pipes} pipes "
                f"are too many: they have {_MOST_TAGS >> 1} numbers"
            )
        self._timeout_s = timeout_s
        self._ahead = ahead
        self._name_of = name_of
        self._here: dict[Parcel, Gradients] = {}
        self._awaited: dict[Parcel, list[tuple[Any, torch.Tensor, LeafSpec]]] = {}
        self._to_post: deque[tuple[Parcel, ValueSpec]] = deque()
        self._sent: deque[_Sent] = deque()
        self._spare: dict[int, list[torch.Tensor]] = {}
        self._shares = comm.num_hosts == 1 and comm.size > 1

    @property
    def rank(self) -> int:
        """This rank of the pipeline."""
        return self._comm.rank

    def source(self, parcel: Parcel) -> int:
        """Return the rank that a parcel comes from."""
        hop = self._hops[parcel.hop]
        return self._ranks[parcel.pipe][hop.to_stage if parcel.is_gradient else hop.from_stage]

    def destination(self, parcel: Parcel) -> int:
        """Return the rank that a parcel goes to."""
        hop = self._hops[parcel.hop]
        return self._ranks[parcel.pipe][hop.from_stage if parcel.is_gradient else hop.to_stage]

    def expect(self, parcels: Iterable[tuple[Parcel, ValueSpec]]) -> None:
        """Say what this rank will take in a step, in that order; those of its own stages are left out."""
        self._to_post = deque((parcel, spec) for parcel, spec in parcels if self.source(parcel) != self._comm.rank)
        for _ in range(self._ahead):
            self._post_next()

    def send(self, parcel: Parcel, spec: ValueSpec, leaves: Gradients, why: str) -> None:
        """Hand a parcel over; the tensors may be written to afterwards, unless they stay on this rank.

        Args:
            parcel: that goes.
            spec: of the value.
            leaves: of it, those alone that have a gradient where it is one; None where there is none after all.
            why: what sends it.

        Raises:
            InvalidModel: the value does not look like its spec.
        """
        destination = self.destination(parcel)
        if destination == self._comm.rank:
            self._here[parcel] = leaves
            return
        self._forget_what_has_gone()
        for leaf, each in zip(leaves, _leaves_of(parcel, spec), strict=True):
            if leaf is not None and (leaf.shape, leaf.dtype) != (each.shape, each.dtype):
                raise InvalidModel(
                    f"{self._describe(parcel)} is {leaf.dtype} {list(leaf.shape)}; by the shapes of what the stage "
                    f"takes it is {each.dtype} {list(each.shape)}"
                )
            size = message_nbytes(each.shape, each.dtype)
            buffer, is_shared = self._buffer(size)
            pack(leaf, buffer[:size])
            work = self._comm.isend(buffer[:size], destination, tag=self._tag(parcel), timeout=self._timeout_s)
            self._sent.append(_Sent(work, buffer, is_shared, f"{self._describe(parcel)} ({why})"))

    def take(self, parcel: Parcel, why: str) -> Gradients:
        """Wait for a parcel. Its tensors belong to the caller, unless it is from this rank.

        Raises:
            CommTimeout: it has not come in time; names who it was to come from, and who waits for it.
            PeerFailure: that rank has died.
            InvalidState: nobody has said that it would be taken.
        """
        found = self._here.pop(parcel, None)
        if found is not None:
            return found
        while parcel not in self._awaited:
            if not self._to_post:
                raise InvalidState(f"{self._describe(parcel)} is taken, and was not expected ({why})")
            self._post_next()
        with_buffers = self._awaited.pop(parcel)
        self._post_next()
        for work, _, _ in with_buffers:
            self._wait(work, self.source(parcel), why, parcel)
        return [unpack(buffer, leaf.shape, leaf.dtype) for _, buffer, leaf in with_buffers]

    def keep(self, parcel: Parcel, leaves: Gradients) -> None:
        """Put a parcel that was taken aside, for who takes it again."""
        self._here[parcel] = leaves

    def finish(self) -> None:
        """Wait until all that was sent has been received."""
        while self._sent:
            sent = self._sent[0]
            self._wait(sent.work, None, f"nobody has received {sent.words}")
            self._forget(self._sent.popleft())

    def _post_next(self) -> None:
        if not self._to_post:
            return
        parcel, spec = self._to_post.popleft()
        posted = []
        for leaf in _leaves_of(parcel, spec):
            buffer = torch.empty(message_nbytes(leaf.shape, leaf.dtype), dtype=torch.uint8)
            work = self._comm.irecv(buffer, self.source(parcel), tag=self._tag(parcel), timeout=self._timeout_s)
            posted.append((work, buffer, leaf))
        self._awaited[parcel] = posted

    def _tag(self, parcel: Parcel) -> int:
        number = (parcel.hop * self._num_pipes + parcel.pipe) * self._num_micro_batches + parcel.micro_batch
        return 2 * number + parcel.is_gradient

    def _buffer(self, size: int) -> tuple[torch.Tensor, bool]:
        """Bytes that nobody else writes to, shared if there is such memory: as many, or somewhat more."""
        size = _rounded(size)
        spare = self._spare.get(size)
        if spare:
            return spare.pop(), True
        if self._shares:
            try:
                return self._comm.empty(size, torch.uint8), True
            except ResourceExhausted:
                self._shares = False  # from here on messages wait for their sender to come by
        return torch.empty(size, dtype=torch.uint8), False

    def _forget_what_has_gone(self) -> None:
        while self._sent and self._sent[0].work.done:
            sent = self._sent.popleft()
            sent.work.wait()
            self._forget(sent)

    def _forget(self, sent: _Sent) -> None:
        if sent.is_shared:
            self._spare.setdefault(len(sent.buffer), []).append(sent.buffer)

    def _wait(self, work: Any, source: int | None, words: str, parcel: Parcel | None = None) -> None:
        try:
            work.wait(timeout=self._timeout_s)
        except HocketError as error:
            if parcel is not None:
                words += f" waits for {self._describe(parcel)}"
            message = f"{self._name_of(self._comm.rank)}: {words}: {error}"
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
    """The next of eight sizes between powers of two, so that buffers fit again where batches differ in length."""
    step = max(64, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def to_leaves(value: Any) -> Leaves:
    """Return the leaves of a value as tensors that can travel."""
    return [
        leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf or 0, dtype=NUMBERS[type(leaf)])
        for leaf in flatten(value)[0]
    ]


def from_leaves(leaves: Sequence[Any], spec: ValueSpec) -> Any:
    """Make the value of leaves that have come."""
    made = [
        leaf if each.number is None else number_of(leaf, each.number)
        for leaf, each in zip(leaves, spec.leaves, strict=True)
    ]
    return pytree.tree_unflatten(made, spec.tree)
