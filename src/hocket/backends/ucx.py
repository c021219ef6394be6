"""UCX, through ucxx: messages over the fastest transport between any two ranks; schedules make the collectives.

All lanes of a process share one worker (`hocket.backends._ucx`), which matches messages by 64 bits:

    63                              31 30                            0
    +---------------------------------+------------------------------+
    | channel                         | tag of the message           |
    +---------------------------------+------------------------------+

A channel stands for a lane of a communicator and a sending rank. The receiver numbers its channels consecutively and
never reuses a number. When a communicator is opened, the receiver sends each sender the numbers of its channels over
channel 0. The tag of such a hello is the rank in the job of the process that sends it; its content is the
communicator's key and the number of the first channel. Messages with the same 64 bits arrive in the order in which they
were sent.

A message is taken from UCX only when a receive is the first in the queue for its 64 bits. So the size of a message is
known before it is received, and a receive that is given up is unknown to UCX unless its message has arrived.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import time
import weakref
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
_FLUSH_S = 2.0  # longest wait for peers that do not receive, when the library is closed


class UcxBackend(Backend):
    """The channels of all lanes, over the one connection of the process."""

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
        self._next_channel = 1  # channel 0 carries the first messages between members
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
            yield Finding("ucx", "good", f'ucxx {version}, UCX {ucx}; used only if backend "ucx" is requested')

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
        received = self._hellos.setdefault(key, {})
        self._exchange_hellos(hellos, received, timeout)
        lanes = [
            UcxMessageLane(
                self._connection,
                members,
                outgoing=[received[member] + lane for member in members],
                incoming=[hello.channel + lane for hello in hellos],
            )
            for lane in range(_NUM_LANES)
        ]
        return Lanes(
            _native.python_lane(RefusingLane(len(members), _NO_COLLECTIVES), self.name),
            _native.python_lane(lanes[_POINT_TO_POINT], self.name, self._connection.driven),
            _native.python_lane(lanes[_SCHEDULES], self.name, self._connection.driven),
        )

    def _exchange_hellos(self, hellos: Sequence[_Hello], received: dict[int, int], timeout: float) -> None:
        """Send all members the channels that they send over, and wait until all members have sent theirs."""
        connection = self._connection
        for hello in hellos:
            hello.request = connection.send(hello.member, self._rank, hello.memory)
        deadline = time.monotonic() + timeout
        while not all(hello.request.completed and hello.member in received for hello in hellos):
            _native.progress()
            connection.progress()
            self._take_hellos()
            silent = [hello.member for hello in hellos if hello.member not in received]
            lost = [member for member in silent if connection.is_lost(member)]
            if lost:
                _kept_alive.append(hellos)
                raise Aborted(f"ucx has lost the connection to rank {lost[0]} of the job")
            if time.monotonic() > deadline:
                _kept_alive.append(hellos)
                raise CommTimeout(f"ucx: ranks {silent} of the job did not answer within {timeout:g} s")
        connection.driven.note_use()
        try:
            for hello in hellos:
                hello.request.check_error()
        except Exception as error:  # ucxx has an exception class for every status
            raise Aborted(f"ucx could not connect the ranks of a new communicator: {error}") from error

    def _take_hellos(self) -> None:
        """Store the hellos that have arrived, also for communicators that this rank opens later."""
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
        if not is_broken:  # after a failure the survivors continue to use it
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


_kept_alive: list[Sequence[_Hello]] = []  # UCX may read abandoned messages until the process ends


class UcxMessageLane(Lane):
    """Messages between the members of a communicator.

    Args:
        connection: worker of the process.
        members: ranks of the members in the job.
        outgoing, incoming: for each member, the channel to it, and the channel from it.
    """

    polling = "eager"
    depth = 1 << 20

    def __init__(
        self, connection: _ucx.Worker, members: Sequence[int], *, outgoing: Sequence[int], incoming: Sequence[int]
    ) -> None:
        super().__init__(len(members))
        self._connection = connection
        self._members = members
        self._outgoing = outgoing
        self._incoming = incoming
        self._expected: dict[int, deque[_Receive]] = {}  # for each 64 bits of UCX, the receives in order

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
        if self._connection.is_closed:  # the operation was given up before
            return True
        self._connection.progress()
        if not isinstance(token, _Receive):
            return _is_over(token)
        if token.request is None:
            self._take(token)
        if token.request is None or not _is_over(token.request):
            return False
        if token.received_nbytes != token.nbytes:
            raise CollectiveMismatch(f"a message of {token.received_nbytes} bytes has arrived")
        return True

    def give_up(self, token: object) -> bool:
        if not isinstance(token, _Receive) or token.request is not None:
            return False
        self._leave_queue(token)
        return True

    def _take(self, receive: _Receive) -> None:
        """Start to receive the message if it has arrived and this receive is the first in its queue."""
        if self._expected[receive.tag][0] is not receive or (found := self._connection.probe(receive.tag)) is None:
            return
        self._leave_queue(receive)
        receive.received_nbytes = found.length
        # A message of a wrong size is received all the same, because otherwise its sender would wait forever.
        fits = found.length == receive.nbytes
        memory = _view(receive.address, receive.nbytes) if fits else bytearray(found.length)
        receive.request = self._connection.receive(found, memory)
        receive.memory = memory

    def _leave_queue(self, receive: _Receive) -> None:
        queue = self._expected[receive.tag]
        queue.remove(receive)
        if not queue:
            del self._expected[receive.tag]


class UcxPeers:
    """Messages to processes outside of a job. One object serves all connections of a process.

    Examples:
        >>> from hocket.backends.ucx import UcxPeers
        >>> UcxPeers.find_obstacle() is None  # with the extra "ucx"
        True
    """

    find_obstacle = staticmethod(_ucx.find_obstacle)

    def __init__(self) -> None:
        self._worker = _ucx.Worker()
        self._numbers = itertools.count(1)

    @property
    def address(self) -> str:
        """What a peer needs to know of this process."""
        return self._worker.address

    def message_lane(self, address: str, outgoing: int, incoming: int) -> _native.Lane:
        """Return a lane whose rank 1 is a peer.

        Args:
            address: of the peer. UCX believes it.
            outgoing, incoming: channels, chosen by the receiver of each: unique among the channels that it has chosen.
        """
        number = next(self._numbers)
        self._worker.connect(number, address)
        lane = UcxMessageLane(self._worker, [0, number], outgoing=[0, outgoing], incoming=[0, incoming])
        weakref.finalize(lane, self._worker.disconnect, number)
        return _native.python_lane(lane, "ucx", self._worker.driven)


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
    """Return a view of raw memory, which hocket keeps while the operation runs."""
    return (ctypes.c_byte * nbytes).from_address(address) if nbytes else bytearray()


ADAPTER = UcxBackend
