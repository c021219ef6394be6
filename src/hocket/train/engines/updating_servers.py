"""Parameter servers that have the parameters and the optimizer: ranks send gradients, and get parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import torch

from hocket.comm import Communicator
from hocket.errors import AuthenticationError, InvalidArgument
from hocket.train.engines.engine import TensorSpec, UpdatingEngine
from hocket.train.engines.servers.client import ServerClient
from hocket.train.engines.servers.messages import HEAD_NBYTES, MessageKind, part_nbytes
from hocket.train.engines.servers.optimizers import ServedOptimizer, TorchServedOptimizer
from hocket.train.engines.servers.process import GradientServerTask, Updating
from hocket.train.engines.servers.shards import ParcelPlan, check_server_options


class UpdatingServers(UpdatingEngine):
    """Parameter servers with the parameters and the optimizer.

    Args:
        comm, tensors, timeout_s: see `GradientEngine`.
        parameters: the parameters, in the order of `tensors`, equal on all ranks.
        optimizer: their optimizer; servers have copies of its parts, with its state.
        num_required: see `Updates`.
        num_servers, message_nbytes, ports: see `ParameterServer`; tensors are not cut.

    Raises:
        InvalidArgument: the optimizer has other parameters, or is no optimizer; or a parameter is on another device.
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
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | ServedOptimizer,
        timeout_s: float,
        num_required: int | None,
        num_servers: int,
        message_nbytes: int,
        ports: Sequence[int],
    ) -> None:
        super().__init__(comm, tensors, exact=False, timeout_s=timeout_s)
        numbers = {id(each): number for number, each in enumerate(parameters)}
        served = TorchServedOptimizer(optimizer) if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        served.check(parameters)
        for spec, each in zip(self.tensors, parameters, strict=True):
            if each.device.type != "cpu":
                raise InvalidArgument(
                    f"{spec.name} is on device {each.device}, and servers that update have parameters in host memory: "
                    "use an engine that sums"
                )
        self._parameters = list(parameters)
        self._optimizer = served
        self._settings = served.settings()
        self._plan = plan = ParcelPlan(self.tensors, num_servers, message_nbytes, cuts=False)
        self._given: dict[int, torch.Tensor | None] = {}
        self._step = 0
        self._is_closed = False

        def make_task(
            server: int, address: str, port: int, key: bytes, most_nbytes: int
        ) -> tuple[GradientServerTask, bytes]:
            parcels = plan.of_server(server)
            tensors_of = {number: [piece.tensor for piece in plan.parcels[number].pieces] for number, _, _ in parcels}
            here = {number for of_parcel in tensors_of.values() for number in of_parcel}
            own = {identity: number for identity, number in numbers.items() if number in here}
            part = served.part(own, list(tensors_of.values()))
            content = cloudpickle.dumps(Updating(part, tensors_of, num_required))
            return GradientServerTask(
                address, port, key.hex(), comm.size, parcels, most_nbytes, update_nbytes=len(content)
            ), content

        self._client = ServerClient(comm, plan, num_servers, make_task, ports, timeout_s, close_s=timeout_s)

    def exchange(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """See `UpdatingEngine.exchange`."""
        settings = self._optimizer.settings()
        if settings != self._settings:
            self._client.tell(MessageKind.SETTINGS, settings.encode())
            self._settings = settings
        for place, parcel in enumerate(self._plan.parcels):
            own = [gradients[piece.tensor] for piece in parcel.pieces]
            flats = [
                torch.zeros(piece.end, dtype=self._plan.dtype(place), device="cpu")
                if each is None
                else each.detach().reshape(-1)
                for piece, each in zip(parcel.pieces, own, strict=True)
            ]
            parts = [bytes(each is not None for each in own), *(each.view(torch.uint8).numpy() for each in flats)]
            self._client.call(MessageKind.GRADIENTS, place, self._step, parts)
        self._step += 1
        self._take_answers()

    def pull(self) -> None:
        """See `UpdatingEngine.pull`."""
        self._pull_values()
        tensors = [[piece.tensor for piece in parcel.pieces] for parcel in self._plan.parcels]
        sizes = [self._optimizer.state_nbytes(each) for each in tensors]
        states: list[list[bytes]] = [[] for _ in sizes]
        nbytes = [
            part_nbytes(self._plan.numel(place) * self._plan.dtype(place).itemsize) for place in range(len(sizes))
        ]
        for part in range(max((-(-size // each) for size, each in zip(sizes, nbytes, strict=True)), default=0)):
            for place, size in enumerate(sizes):
                if part * nbytes[place] < size:
                    self._client.call(MessageKind.STATE, place, part, [])
            for place, answer in self._client.answers():
                states[place].append(answer[HEAD_NBYTES:])
        for place, size in enumerate(sizes):
            state = b"".join(states[place])
            if len(state) != size:
                raise AuthenticationError(
                    f"the state of {self._plan.names(place)} has {len(state)} bytes on its server, and {size} here"
                )
            if size:
                self._optimizer.take(tensors[place], state)

    def close(self) -> None:
        """End the training: tell the servers that no more gradients come, wait until all ranks have done so, get the
        last parameters, which are equal on all ranks, and end the servers. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._client.is_whole:
                self._client.tell(MessageKind.LEAVE)
                self._client.wait_for_others()
                self._pull_values()
        except BaseException:
            self._client.abandon()  # it has waited for the others
            raise
        finally:
            self._client.close()

    def abandon(self) -> None:
        """See `GradientEngine.abandon`."""
        self._client.abandon()
        self.close()

    def _pull_values(self) -> None:
        for place in range(len(self._plan.parcels)):
            self._client.call(MessageKind.PULL, place, self._step, [])
        self._take_answers()

    def _take_answers(self) -> None:
        for place, answer in self._client.answers():
            values = torch.frombuffer(bytearray(answer), dtype=self._plan.dtype(place), offset=HEAD_NBYTES)
            pieces = self._plan.parcels[place].pieces
            with torch.no_grad():
                for piece, part in zip(pieces, torch.split(values, [each.end for each in pieces]), strict=True):
                    self._parameters[piece.tensor].copy_(part.view(self.tensors[piece.tensor].shape))
