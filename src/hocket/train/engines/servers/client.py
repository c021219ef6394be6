"""A rank's calls of the parameter servers: sent as they come, awaited together, checked when they answer."""

from __future__ import annotations

import atexit
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from hocket.comm import Communicator
from hocket.comm.unseen import warn_at_the_users_line
from hocket.errors import AuthenticationError, CommTimeout, HocketError, MissingPackage, PeerFailure
from hocket.train.checks import name_ranks
from hocket.train.engines.servers.launching import ServerAddress, Servers
from hocket.train.engines.servers.messages import HEAD_NBYTES, KEY_NBYTES, BadMessage, MessageHead, MessageKind, key_for
from hocket.train.engines.servers.process import EXCHANGE, SERVICE, GradientServerTask, channel_options
from hocket.train.engines.servers.shards import ParcelPlan
from hocket.train.engines.watch import Watch

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_LOOK_S = 0.05
_CAUSE_S = 1.0
"""Seconds in which a rank's death is known, after the server that it started is gone."""
_SETTINGS_NBYTES = 1 << 16
_ASK_S = 2.0
"""Seconds that a server has for the answer which ranks are late."""

MakeTask = Callable[[int, str, int, bytes, int], tuple[GradientServerTask, bytes]]
"""(number of the server, its address, its port, key, most bytes of a message) -> its task, and what follows it."""


class ServerClient:
    """Starts the parameter servers, and calls them.

    Args:
        comm: a communicator of all ranks; the client makes its own ones from it.
        plan: the messages of a step.
        num_servers: number of servers.
        make_task: makes the task of a server.
        ports: port of each server; empty: free ones.
        timeout_s: timeout of a wait, in seconds.
        is_in_memory: whether elements are in shared memory, and messages have only their heads.
        close_s: seconds that `close` waits for the other ranks.

    Attributes:
        is_whole: whether no call has failed or is under way.
        RpcError: the class of gRPC's errors.

    Raises:
        MissingPackage: gRPC is not installed.
        ResourceExhausted: a server could not be started.
    """

    def __init__(
        self,
        comm: Communicator,
        plan: ParcelPlan,
        num_servers: int,
        make_task: MakeTask,
        ports: Sequence[int],
        timeout_s: float,
        *,
        is_in_memory: bool = False,
        close_s: float = 10.0,
    ) -> None:
        try:
            import grpc
        except ImportError:
            grpc = None
        # A rank without gRPC must not leave the others waiting.
        of_ranks = comm.all_gather_object(
            (grpc is not None, secrets.token_bytes(KEY_NBYTES) if comm.rank == 0 else b"")
        )
        lacking = [rank for rank, (has_grpc, _) in enumerate(of_ranks) if not has_grpc]
        if lacking:
            raise MissingPackage(
                f"parameter servers need gRPC, which is missing on {name_ranks(lacking)}: pip install 'hocket[grpc]'"
            )
        _tell_of_proxies()
        self._grpc, self.RpcError = grpc, grpc.RpcError
        self._rank = comm.rank
        self._plan, self._is_in_memory = plan, is_in_memory
        self._timeout_s, self._close_s = timeout_s, min(timeout_s, close_s)
        self._calls: dict[int, tuple[MessageKind, int, Any]] = {}
        self._other_error: Exception | None = None
        self._num_told = 0
        key = of_ranks[0][1]
        self._to_server, self._to_rank = key_for(key, is_answer=False), key_for(key, is_answer=True)
        # Behind the head may come a byte for each tensor, and settings of an optimizer.
        most_nbytes = HEAD_NBYTES + plan.most_nbytes + max(len(plan.of_tensor), _SETTINGS_NBYTES)
        self._servers = Servers(
            comm,
            num_servers,
            lambda number, address, port: make_task(number, address, port, key, most_nbytes),
            ports,
        )
        self._channels: list[Any] = []
        comms: list[Communicator] = []
        try:
            comms += [comm.dup(), comm.dup()]
            self._comm, self._watch = comms[0], Watch(comms[1])
            self.is_whole = True
            options = channel_options(most_nbytes)
            for each in self.addresses:
                self._channels.append(grpc.insecure_channel(each.address, options))
        except BaseException:
            for channel in self._channels:
                channel.close()
            for made in comms:
                made._leave(0.0)
            self._servers.close()
            raise
        self._exchanges = [channel.unary_unary(f"/{SERVICE}/{EXCHANGE}") for channel in self._channels]
        # A program may end without closing; then the watch's receive must not count as forgotten.
        this = weakref.ref(self)
        self._at_exit = atexit.register(lambda: _close_at_exit(this))

    @property
    def addresses(self) -> list[ServerAddress]:
        """Where the servers run."""
        return self._servers.addresses

    def call(self, kind: MessageKind, parcel: int, step: int, parts: Sequence[Any]) -> None:
        """Send the elements of a parcel to its server.

        Args:
            kind: what they are.
            parcel: number of the parcel.
            step: number of the step.
            parts: their bytes.
        """
        self.is_whole = False
        head = MessageHead(kind, self._rank, parcel, step, sum(len(part) for part in parts)).pack(self._to_server)
        server = self._plan.parcels[parcel].server
        self._calls[parcel] = kind, step, self._exchanges[server].future(b"".join([head, *parts]))

    def tell(self, kind: MessageKind, content: bytes = b"") -> None:
        """Tell something to all servers, and wait until they have taken it.

        Raises the errors of `answers`.
        """
        self.is_whole = False
        deadline = time.monotonic() + self._timeout_s
        number = self._num_told
        self._num_told += 1
        head = MessageHead(kind, self._rank, 0, number, len(content)).pack(self._to_server, content)
        for server, call in [(each, self._exchanges[each.number].future(head + content)) for each in self.addresses]:
            self._wait(kind, 0, number, call, deadline, server)
        self.is_whole = True

    def tell_arrival(self, rank: int, parcel: int, step: int) -> Any:
        """Tell a server that elements of another rank are in its memory; return a future of the answer, which comes
        when the sum is complete."""
        head = MessageHead(MessageKind.ARRIVED, rank, parcel, step, 0).pack(self._to_server)
        return self._exchanges[self._plan.parcels[parcel].server].future(head)

    def check_arrival(self, parcel: int, step: int, call: Any) -> None:
        """Check the answer of a call of `tell_arrival`, which is done.

        Raises:
            AuthenticationError: what answers is not a server of this job.
        """
        server = self.addresses[self._plan.parcels[parcel].server]
        self._checked(call.result(), MessageKind.ARRIVED.answer, parcel, step, server)

    def fail(self, error: Exception) -> None:
        """Let the next wait raise an error that happened in another thread."""
        self._other_error = error

    def wait_for_others(self) -> None:
        """Wait until all ranks call it.

        Raises:
            CommTimeout, PeerFailure: a rank does not.
        """
        self._comm.barrier(timeout=self._close_s)

    def answers(self) -> Iterator[tuple[int, bytes]]:
        """Wait for the answers of all calls; return the number of each parcel, and what follows the head as bytes from
        `HEAD_NBYTES` on.

        Raises:
            CommTimeout: a server, or the gradients of another rank, did not come in time.
            PeerFailure: a server or a rank died.
            AuthenticationError: what answers is not a server of this job.
        """
        self._watch.check()  # servers that never let this rank wait do not hide a dead one
        deadline = time.monotonic() + self._timeout_s
        for parcel, (kind, step, call) in self._calls.items():
            server = self.addresses[self._plan.parcels[parcel].server]
            yield parcel, self._wait(kind, parcel, step, call, deadline, server)
        self._calls.clear()
        self.is_whole = True

    def abandon(self) -> None:
        """Let `close` wait for nobody, after an error of this rank."""
        self.is_whole = False

    def end_together(self) -> None:
        """Wait for the other ranks, after a step without errors: they may still wait for answers of these servers."""
        if self.is_whole:
            self.is_whole = False
            with suppress(HocketError):
                self.wait_for_others()

    def close(self) -> None:
        """Close the connections, and end the servers that this rank has started. Idempotent."""
        try:
            self.end_together()
        finally:  # also after Ctrl-C
            for _, _, call in self._calls.values():
                call.cancel()
            self._calls.clear()
            for channel in self._channels:
                channel.close()
            self._watch.close()
            self._comm._leave(0.0)
            self._servers.close()
            atexit.unregister(self._at_exit)

    def _wait(
        self, kind: MessageKind, parcel: int, step: int, call: Any, deadline: float, server: ServerAddress
    ) -> bytes:
        while True:
            try:
                answer: bytes = call.result(timeout=_LOOK_S)
            except self._grpc.FutureTimeoutError:
                if self._other_error is not None:
                    raise self._other_error from None
                self._watch.check()
                if time.monotonic() > deadline:
                    raise self._late(parcel, step, server) from None
            except self._grpc.RpcError as error:
                raise self._failure(error, server) from None
            else:
                return self._checked(answer, kind.answer, parcel, step, server)

    def _checked(self, answer: bytes, kind: MessageKind, parcel: int, step: int, server: ServerAddress) -> bytes:
        try:
            head = MessageHead.unpack(answer, self._to_rank)
            if (head.kind, head.parcel, head.step) != (kind, parcel, step):
                raise BadMessage(f"an answer is of parcel {head.parcel} in step {head.step}")
            if kind == MessageKind.VALUES:
                wanted = 0 if self._is_in_memory else self._plan.numel(parcel) * self._plan.dtype(parcel).itemsize
                if head.nbytes != wanted:
                    raise BadMessage(f"an answer has {head.nbytes} bytes of parcel {parcel}")
        except BadMessage as error:
            raise AuthenticationError(f"{server}: {error}") from None
        return answer

    def _late(self, parcel: int, step: int, server: ServerAddress) -> HocketError:
        """Return the error of a wait that took too long, with the ranks that have not sent their gradients."""
        head = MessageHead(MessageKind.WHO_IS_LATE, self._rank, parcel, step, 0).pack(self._to_server)
        names = self._plan.names(parcel) if self._plan.parcels else "nothing"
        try:
            answer = self._exchanges[server.number](head, timeout=_ASK_S)
        except (self._grpc.RpcError, ValueError):  # ValueError: another thread has closed the connections
            return CommTimeout(f"{server} did not answer within {self._timeout_s:g} s; it was asked for {names}")
        body = self._checked(answer, MessageKind.LATE, parcel, step, server)[HEAD_NBYTES:]
        ranks = [int.from_bytes(body[place : place + 4], "little") for place in range(0, len(body), 4)]
        if not ranks:
            return CommTimeout(f"{server} did not answer with {names} within {self._timeout_s:g} s: it is too slow")
        return CommTimeout(
            f"{name_ranks(ranks)} sent no gradients of {names} to parameter server {server.number} within "
            f"{self._timeout_s:g} s"
        )

    def _failure(self, error: Any, server: ServerAddress) -> HocketError:
        code, text = error.code(), error.details()
        if code == self._grpc.StatusCode.UNAUTHENTICATED:
            return AuthenticationError(f"{server}: {text}")
        if code == self._grpc.StatusCode.UNAVAILABLE:
            # A server ends with the rank that started it: then that rank is the cause, which is known a moment later.
            deadline = time.monotonic() + _CAUSE_S
            while time.monotonic() < deadline:
                self._watch.check()
                time.sleep(_LOOK_S)
            exit_code = self._servers.exit_code(server.number)
            how = "" if exit_code is None else f" with exit code {exit_code}"
            return PeerFailure(f"{server} ended{how}, or cannot be reached: {text}")
        return PeerFailure(f"{server}: {code.name}: {text}")


def _close_at_exit(this: weakref.ref[ServerClient]) -> None:
    client = this()
    if client is not None:
        client.close()


def _tell_of_proxies() -> None:
    found = [name for name in _PROXIES if os.environ.get(name)]
    if found:
        warn_at_the_users_line(
            f"{', '.join(found)} would send gRPC through a proxy: the parameter servers of this job are reached "
            "without it"
        )
