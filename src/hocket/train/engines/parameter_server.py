"""Parameter servers over gRPC: each has a share of the tensors, and adds what the ranks send.

In TensorFlow's distributed runtime workers send gradients to servers (Abadi et al., "TensorFlow: a system for
large-scale machine learning", OSDI 2016); Awan et al. (arXiv 1810.11112) compare it with collectives. A server moves
2 W M / S bytes in a step of W ranks, M bytes of gradients and S servers; so its link is the narrow place.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.errors import AuthenticationError, CommTimeout, HocketError, InvalidArgument, MissingPackage, PeerFailure
from hocket.train.checks import check_count
from hocket.train.engines.engine import GradientEngine, TensorSpec
from hocket.train.engines.servers.launching import ServerAddress, Servers
from hocket.train.engines.servers.messages import HEAD_NBYTES, KEY_NBYTES, BadMessage, Head, Kind, key_for
from hocket.train.engines.servers.process import EXCHANGE, SERVICE, ServerTask, channel_options
from hocket.train.engines.servers.shards import MOST_NBYTES, Parcel, assign, parcels_of
from hocket.train.engines.watch import Watch

_LOOK_S = 0.05
_CLOSE_S = 10.0
_CAUSE_S = 1.0
_ASK_S = 2.0
"""Seconds that a server has for the answer which ranks are late."""


class ParameterServer(GradientEngine):
    """Synchronous parameter servers: sums of gradients over gRPC, and the optimizer on each rank.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        num_servers: number of servers; tensors are spread over them by bytes.
        message_nbytes: most bytes of gradients in a message.
        ports: port of each server; empty: free ones.
    """

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        exact: bool,
        timeout_s: float,
        num_servers: int = 1,
        message_nbytes: int = 4 << 20,
        ports: Sequence[int] = (),
    ) -> None:
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s)
        try:
            import grpc
        except ImportError:
            raise MissingPackage("parameter servers need gRPC: pip install 'hocket[grpc]'") from None
        check_count("num_servers", num_servers)
        check_count("message_nbytes", message_nbytes)
        if message_nbytes > MOST_NBYTES:
            raise InvalidArgument(f"message_nbytes must be at most {MOST_NBYTES}, not {message_nbytes}")
        if ports and len(ports) != num_servers:
            raise InvalidArgument(f"ports must have a port for each of {num_servers} servers, not {list(ports)!r}")
        self._grpc = grpc
        servers = assign(self.tensors, num_servers)
        self._parcels = parcels_of(self.tensors, servers, message_nbytes)
        self._of_tensor: list[list[int]] = [[] for _ in self.tensors]
        for number, parcel in enumerate(self._parcels):
            for piece in parcel.pieces:
                self._of_tensor[piece.tensor].append(number)
        self._num_pieces = [len(parcel.pieces) for parcel in self._parcels]
        self._missing = list(self._num_pieces)
        self._step = 0
        self._flats: list[torch.Tensor | None] = [None] * len(self.tensors)
        self._calls: dict[int, Any] = {}
        # Every rank sends what rank 0 chose: the objects of a communicator are sealed.
        key = comm.broadcast_object(secrets.token_bytes(KEY_NBYTES) if comm.rank == 0 else None, 0)
        self._to_server, self._to_rank = key_for(key, is_answer=False), key_for(key, is_answer=True)
        most_nbytes = message_nbytes + HEAD_NBYTES + 8

        def make_task(server: int, address: str, port: int) -> ServerTask:
            own = [
                (number, _numel(parcel), self._dtype_name(parcel))
                for number, parcel in enumerate(self._parcels)
                if parcel.server == server
            ]
            return ServerTask(address, port, key.hex(), comm.size, own, most_nbytes)

        self._servers = Servers(comm, num_servers, make_task, ports)
        self._comm = comm.dup()
        self._watch = Watch(comm.dup())
        self._is_whole = True
        """Whether no step has failed or is under way."""
        options = channel_options(most_nbytes)
        self._channels = [grpc.insecure_channel(each.address, options) for each in self._servers.addresses]
        self._exchanges = [channel.unary_unary(f"/{SERVICE}/{EXCHANGE}") for channel in self._channels]

    def start(self, number: int, tensor: torch.Tensor) -> None:
        """See `GradientEngine.start`: a message is sent as soon as all of its pieces are there."""
        self._flats[number] = tensor.detach().view(-1)
        for parcel in self._of_tensor[number]:
            self._missing[parcel] -= 1
            if not self._missing[parcel]:
                self._send(parcel)

    def finish(self) -> None:
        """See `GradientEngine.finish`.

        Raises:
            AuthenticationError: what answers is not a server of this job.
        """
        deadline = time.monotonic() + self.timeout_s
        self._is_whole = False
        for parcel, call in self._calls.items():
            answer = self._wait(parcel, call, deadline)
            elements = torch.frombuffer(bytearray(answer), dtype=self._dtype(self._parcels[parcel]), offset=HEAD_NBYTES)
            begin = 0
            for piece in self._parcels[parcel].pieces:
                flat = self._flats[piece.tensor]
                assert flat is not None
                flat[piece.begin : piece.end] = elements[begin : begin + piece.end - piece.begin]
                begin += piece.end - piece.begin
        self._calls.clear()
        self._missing = list(self._num_pieces)
        self._flats = [None] * len(self.tensors)
        self._step += 1
        self._is_whole = True

    def close(self) -> None:
        """Close the connections, and end the servers that this rank has started. Idempotent.

        Other ranks may still wait for answers of these servers; after a step without errors all ranks close together.
        """
        if self._is_whole:
            self._is_whole = False
            with suppress(HocketError):
                self._comm.barrier(timeout=min(self.timeout_s, _CLOSE_S))
        for each in self._calls.values():
            each.cancel()
        self._calls.clear()
        for channel in self._channels:
            channel.close()
        self._watch.close()
        self._comm._leave(0.0)
        self._servers.close()

    def _send(self, number: int) -> None:
        parcel = self._parcels[number]
        parts: list[Any] = [b""]
        for piece in parcel.pieces:
            flat = self._flats[piece.tensor]
            assert flat is not None
            parts.append(flat[piece.begin : piece.end].view(torch.uint8).numpy())
        nbytes = sum(len(part) for part in parts)
        parts[0] = Head(Kind.GRADIENTS, self.comm.rank, number, self._step, nbytes).pack(self._to_server)
        self._calls[number] = self._exchanges[parcel.server].future(b"".join(parts))

    def _wait(self, number: int, call: Any, deadline: float) -> bytes:
        server = self._servers.addresses[self._parcels[number].server]
        while True:
            try:
                answer: bytes = call.result(timeout=_LOOK_S)
                break
            except self._grpc.FutureTimeoutError:
                self._watch.check()
                if time.monotonic() > deadline:
                    raise self._late(number, server) from None
            except self._grpc.RpcError as error:
                raise self._failure(error, server) from None
        return self._checked(answer, number, Kind.VALUES, server)

    def _checked(self, answer: bytes, number: int, kind: Kind, server: ServerAddress) -> bytes:
        try:
            head = Head.unpack(answer, self._to_rank)
            if (head.kind, head.parcel, head.step) != (kind, number, self._step):
                raise BadMessage(f"an answer is of parcel {head.parcel} in step {head.step}")
        except BadMessage as error:
            raise AuthenticationError(f"{server}: {error}") from None
        return answer

    def _late(self, number: int, server: ServerAddress) -> HocketError:
        """Return the error of a wait that took too long, with the ranks that have not sent their gradients."""
        head = Head(Kind.WHO_IS_LATE, self.comm.rank, number, self._step, 0).pack(self._to_server)
        names = ", ".join(self.tensors[piece.tensor].name for piece in self._parcels[number].pieces[:3])
        try:
            answer = self._exchanges[server.number](head, timeout=_ASK_S)
            body = self._checked(answer, number, Kind.LATE, server)[HEAD_NBYTES:]
        except self._grpc.RpcError:
            return CommTimeout(f"{server} did not answer within {self.timeout_s:g} s; it was asked for {names}")
        ranks = [int.from_bytes(body[place : place + 4], "little") for place in range(0, len(body), 4)]
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        return CommTimeout(
            f"{who} sent no gradients of {names} to parameter server {server.number} within {self.timeout_s:g} s"
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

    def _dtype(self, parcel: Parcel) -> torch.dtype:
        return self.tensors[parcel.pieces[0].tensor].dtype

    def _dtype_name(self, parcel: Parcel) -> str:
        return str(self._dtype(parcel)).removeprefix("torch.")


def _numel(parcel: Parcel) -> int:
    return sum(piece.end - piece.begin for piece in parcel.pieces)


ENGINE = ParameterServer
