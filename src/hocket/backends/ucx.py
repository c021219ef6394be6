"""UCX, through ucxx: messages over the fastest transport between any two ranks; collectives are made of schedules.

All lanes of a process share one worker (`hocket.backends._ucx`), which finds a message by its 64 bits alone:

    63                              31 30                            0
    +---------------------------------+------------------------------+
    | channel                         | tag of the message           |
    +---------------------------------+------------------------------+

A channel is a lane of a communicator and the rank that sends. Who receives numbers them, one after the other and never
again, so that no two of its own are equal, and tells the senders when a communicator is opened. That goes over channel
0: there the tag is the sender's rank in the job, and the message the communicator's key and the number of the first of
the receiver's channels that are for it. Messages with the same 64 bits come in the order in which they were sent.

What has come is taken when a receive is first in the queue for its 64 bits. So the size of a message is known before it
is received, and of a receive that is given up UCX has never heard unless its message is there.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hocket import _native
from hocket.backends import _ucx
from hocket.backends._declaration import Finding, LinkSpec, Requirements, installed_version
from hocket.backends._refusing import RefusingLane
from hocket.backends.base import Backend, BackendJob, Lane, Lanes
from hocket.errors import Aborted, CollectiveMismatch, CommTimeout

_TAG_BITS = 31
_TAG_MASK = (1 << _TAG_BITS) - 1
_HELLO = struct.Struct("<QQ")  # key, first channel
_POINT_TO_POINT, _SCHEDULES, _NUM_LANES = range(3)
_NO_COLLECTIVES = "UCX has messages only, and no schedule was chosen for {kind}"
_FLUSH_S = 2.0  # for which leaving waits for peers that take nothing in


class UcxBackend(Backend):
    """The lanes' channels, over the one connection of the process."""

    name: ClassVar[str] = "ucx"
    is_optional: ClassVar[bool] = True
    has_collectives: ClassVar[bool] = False
    needs_driving: ClassVar[bool] = True
    link: ClassVar[LinkSpec | None] = LinkSpec(15e-6, 1.4)
    link_between_hosts: ClassVar[LinkSpec | None] = LinkSpec(70e-6, 1.0)
    requires: ClassVar[Requirements] = Requirements("ucx", {"ucxx": ("_ucx",)})
    left_files: ClassVar[tuple[str, ...]] = ("ucx_*",)

    def __init__(self, connection: _ucx.Connection, job: BackendJob) -> None:
        self._connection = connection
        self._rank = job.rank
        self._next_channel = 1  # 0 is for what members tell each other first
        self._first_channels: dict[int, int] = {}  # by key
        self._hellos: dict[int, dict[int, int]] = {}  # by key and rank in the job: the first channel to send over

    @classmethod
    def find_obstacle(cls) -> str | None:
        return _ucx.find_obstacle()

    @classmethod
    def diagnose(cls) -> Iterator[Finding]:
        version = installed_version("ucxx-cu13")
        if version is None:
            yield Finding("ucx", "note", "ucxx is not installed", "pip install 'hocket[ucx]' for backends=\"ucx\"")
        else:
            ucx = installed_version("libucx-cu13")
            yield Finding("ucx", "good", f'ucxx {version}, UCX {ucx}; for who asks for backend "ucx"')

    @classmethod
    def start(cls, job: BackendJob) -> UcxBackend:
        return cls(_ucx.Connection(job), job)

    @property
    def description(self) -> str:
        return f"UCX {self._connection.version}, messages; collectives by schedules"

    def open_lanes(self, members: Sequence[int], key: int, timeout: float) -> Lanes:
        first = self._first_channels.setdefault(key, self._next_channel)
        self._next_channel = max(self._next_channel, first + len(members) * _NUM_LANES)
        hellos = [_Hello(member, key, first + place * _NUM_LANES) for place, member in enumerate(members)]
        told = self._hellos.setdefault(key, {})
        self._greet(hellos, told, timeout)
        lanes = [
            UcxMessageLane(
                self._connection,
                members,
                outgoing=[told[member] + lane for member in members],
                incoming=[hello.channel + lane for hello in hellos],
            )
            for lane in range(_NUM_LANES)
        ]
        return Lanes(
            _native.python_lane(RefusingLane(len(members), _NO_COLLECTIVES), self.name),
            _native.python_lane(lanes[_POINT_TO_POINT], self.name, self._connection.driven),
            _native.python_lane(lanes[_SCHEDULES], self.name, self._connection.driven),
        )

    def _greet(self, hellos: Sequence[_Hello], told: dict[int, int], timeout: float) -> None:
        """Tell all members the channels that are for them, and wait until all have told theirs."""
        connection = self._connection
        for hello in hellos:
            hello.request = connection.send(hello.member, self._rank, hello.memory)
        deadline = time.monotonic() + timeout
        while not all(hello.request.completed and hello.member in told for hello in hellos):
            _native.progress()
            connection.progress()
            self._take_hellos()
            silent = [hello.member for hello in hellos if hello.member not in told]
            lost = [member for member in silent if connection.is_lost(member)]
            if lost:
                _kept.append(hellos)
                raise Aborted(f"ucx has lost the connection to rank {lost[0]} of the job")
            if time.monotonic() > deadline:
                _kept.append(hellos)
                raise CommTimeout(f"ucx: ranks {silent} of the job did not answer within {timeout:g} s")
        connection.driven.note_use()
        try:
            for hello in hellos:
                hello.request.check_error()
        except Exception as error:  # ucxx has a class for every status
            raise Aborted(f"ucx could not connect the ranks of a new communicator: {error}") from error

    def _take_hellos(self) -> None:
        """Note what has come, also for communicators that this rank opens later."""
        while (found := self._connection.probe(0, ~_TAG_MASK & (1 << 64) - 1)) is not None:
            memory = bytearray(_HELLO.size)
            request = self._connection.receive(found, memory)
            while not request.completed:
                self._connection.progress()
            request.check_error()
            key, channel = _HELLO.unpack(memory)
            self._hellos.setdefault(key, {})[found.sender_tag.value & _TAG_MASK] = channel

    def close_lanes(self, key: int) -> None:
        self._first_channels.pop(key, None)
        self._hellos.pop(key, None)

    def why_cannot_shrink(self, members: Collection[int]) -> str | None:
        return None  # endpoints fail one by one

    def close(self, *, is_broken: bool) -> None:
        if not is_broken:  # after a failure the ranks that are left go on over it
            self._connection.close(_FLUSH_S)


@dataclass(eq=False)
class _Hello:
    member: int
    key: int
    channel: int
    request: Any = None
    memory: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.memory = bytearray(_HELLO.pack(self.key, self.channel))


_kept: list[Sequence[_Hello]] = []  # UCX may read what was given up as long as the process lives


class UcxMessageLane(Lane):
    """Messages between the members of a communicator.

    Args:
        connection: of the process.
        members: their ranks in the job.
        outgoing, incoming: the channel to each member, and from each.
    """

    polling = "eager"
    depth = 1 << 20

    def __init__(
        self, connection: _ucx.Connection, members: Sequence[int], *, outgoing: Sequence[int], incoming: Sequence[int]
    ) -> None:
        super().__init__(len(members))
        self._connection = connection
        self._members = members
        self._outgoing = outgoing
        self._incoming = incoming
        self._expected: dict[int, deque[_Receive]] = {}  # by what UCX finds a message by, in order

    def post(self, operation: _native.LaneOperation, wake: Callable[[], None]) -> object:
        peer = operation.root
        if operation.kind == "send":
            tag = self._outgoing[peer] << _TAG_BITS | operation.tag
            memory = _view(operation.in_address, operation.in_nbytes)
            return self._connection.send(self._members[peer], tag, memory)
        tag = self._incoming[peer] << _TAG_BITS | operation.tag
        receive = _Receive(tag, operation.out_address, operation.out_nbytes)
        self._expected.setdefault(tag, deque()).append(receive)
        return receive

    def test(self, token: object) -> bool:
        if self._connection.is_closed:  # what was given up before
            return True
        self._connection.progress()
        if not isinstance(token, _Receive):
            return _is_over(token)
        if token.request is None:
            self._take(token)
        if token.request is None or not _is_over(token.request):
            return False
        if token.received_nbytes != token.nbytes:
            raise CollectiveMismatch(f"a message of {token.received_nbytes} bytes has come")
        return True

    def give_up(self, token: object) -> bool:
        if not isinstance(token, _Receive) or token.request is not None:
            return False
        self._leave_queue(token)
        return True

    def _take(self, receive: _Receive) -> None:
        """Begin to receive a message that has come, if it is this one's turn."""
        if self._expected[receive.tag][0] is not receive or (found := self._connection.probe(receive.tag)) is None:
            return
        self._leave_queue(receive)
        receive.received_nbytes = found.length
        # What does not fit is taken in all the same, or its sender would wait for ever.
        fits = found.length == receive.nbytes
        memory = _view(receive.address, receive.nbytes) if fits else bytearray(found.length)
        receive.request = self._connection.receive(found, memory)
        receive.memory = memory

    def _leave_queue(self, receive: _Receive) -> None:
        queue = self._expected[receive.tag]
        queue.remove(receive)
        if not queue:
            del self._expected[receive.tag]


@dataclass(eq=False)
class _Receive:
    tag: int
    address: int
    nbytes: int
    received_nbytes: int = 0
    request: Any = None
    memory: Any = None


def _is_over(request: Any) -> bool:
    if not request.completed:
        return False
    request.check_error()
    return True


def _view(address: int, nbytes: int) -> Any:
    """View raw memory, which hocket keeps as long as the operation runs."""
    return (ctypes.c_byte * nbytes).from_address(address) if nbytes else bytearray()


ADAPTER = UcxBackend
