"""Parameter servers over gRPC: each has a share of the tensors, and adds what the ranks send.

In TensorFlow's distributed runtime workers send gradients to servers (Abadi et al., "TensorFlow: a system for
large-scale machine learning", OSDI 2016); Awan et al. (arXiv 1810.11112) compare it with collectives, also where gRPC
carries only the control and another library the tensors (*gRPC+X*). A server moves 2 W M / S bytes in a step of W
ranks, M bytes of gradients and S servers; so its link is the narrow place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.train.engines.engine import SummingEngine, TensorSpec
from hocket.train.engines.servers.client import ServerClient
from hocket.train.engines.servers.launching import ServerAddress
from hocket.train.engines.servers.messages import MessageKind
from hocket.train.engines.servers.payloads import make_payload
from hocket.train.engines.servers.process import GradientServerTask
from hocket.train.engines.servers.shards import ParcelPlan, TensorPiece, check_server_options


class ParameterServer(SummingEngine):
    """Synchronous parameter servers: sums of gradients over gRPC, and the optimizer on each rank.

    Args:
        comm, tensors, exact, timeout_s: see `GradientEngine`.
        num_servers: number of servers; tensors are spread over them by bytes.
        message_nbytes: most bytes of gradients in a message.
        ports: port of each server; empty: free ones.
        payload: "grpc": elements are in the messages; "shm": they are in memory that the ranks and servers of one host
            share; the name of a library of the communicator: it carries them. Control is by gRPC in any case.

    Raises:
        InvalidArgument: an option is out of range, or `payload` is "shm", and the ranks are on several hosts.
        BackendUnavailable: the communicator does not have the library.
    """

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """See `GradientEngine.check_options`."""
        check_server_options(options["num_servers"], options["message_nbytes"], options["ports"])

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
        payload: str = "grpc",
    ) -> None:
        super().__init__(comm, tensors, exact=exact, timeout_s=timeout_s)
        self._plan = plan = ParcelPlan(self.tensors, num_servers, message_nbytes, cuts=True)
        self._payload = way = make_payload(payload, comm, plan, num_servers, timeout_s)
        self._missing = [len(parcel.pieces) for parcel in plan.parcels]
        self._step = 0
        self._flats: list[torch.Tensor | None] = [None] * len(self.tensors)

        def make_task(
            server: int, address: str, port: int, key: bytes, most_nbytes: int
        ) -> tuple[GradientServerTask, bytes]:
            return GradientServerTask(
                address,
                port,
                key.hex(),
                comm.size,
                plan.of_server(server),
                most_nbytes,
                way.blocks(server),
                way.places,
                # The rank that has started the server puts its own elements there itself.
                [rank for rank in way.relayed if rank != comm.rank],
            ), b""

        try:
            self._client = ServerClient(
                comm, plan, num_servers, make_task, ports, timeout_s, is_in_memory=way.is_in_memory
            )
        except BaseException:
            way.close()
            raise
        try:
            way.open(self._client)
        except BaseException:
            self.abandon()
            raise

    @property
    def servers(self) -> list[ServerAddress]:
        """Where the servers run."""
        return self._client.addresses

    def start(self, number: int, tensor: torch.Tensor) -> None:
        """See `SummingEngine.start`: a message is sent as soon as all of its pieces are there."""
        self._flats[number] = tensor.detach().view(-1)
        for place in self._plan.of_tensor[number]:
            self._missing[place] -= 1
            if not self._missing[place]:
                content = self._payload.put(place, self._step, self._pieces(place))
                self._client.call(MessageKind.GRADIENTS, place, self._step, content)

    def finish(self) -> None:
        """See `SummingEngine.finish`.

        Raises:
            AuthenticationError: what answers is not a server of this job.
        """
        for place, answer in self._client.answers():
            sums = self._payload.take(place, answer)
            torch._foreach_copy_(self._pieces(place), self._plan.split(sums, place))
        self._payload.finish()
        self._missing = [len(parcel.pieces) for parcel in self._plan.parcels]
        self._flats = [None] * len(self.tensors)
        self._step += 1

    def abandon(self) -> None:
        """See `GradientEngine.abandon`."""
        self._client.abandon()
        self.close()

    def close(self) -> None:
        """Close the connections, and end the servers that this rank has started. Idempotent."""
        self._client.end_together()
        self._payload.close()
        self._client.close()

    def _pieces(self, place: int) -> list[torch.Tensor]:
        return [self._elements(piece) for piece in self._plan.parcels[place].pieces]

    def _elements(self, piece: TensorPiece) -> torch.Tensor:
        flat = self._flats[piece.tensor]
        assert flat is not None
        return flat[piece.begin : piece.end]


ENGINE = ParameterServer
