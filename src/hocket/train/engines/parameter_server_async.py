"""Asynchronous parameter servers: the gradients of each rank change the parameters as they come.

No rank waits for another (Dean et al., "Large scale distributed deep networks", NIPS 2012). A gradient may have been
computed from parameters that others have changed since; and a step of W ranks is W updates, so that the learning rate
of one process may be too large.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hocket.comm import Communicator
from hocket.train.engines.engine import TensorSpec
from hocket.train.engines.servers.optimizers import ServedOptimizer
from hocket.train.engines.updating_servers import UpdatingServers


class AsynchronousServers(UpdatingServers):
    """Asynchronous parameter servers.

    Args:
        comm, tensors, parameters, optimizer, timeout_s: see `UpdatingServers`.
        num_servers, message_nbytes, ports: see `ParameterServer`; tensors are not cut.
    """

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | ServedOptimizer,
        timeout_s: float,
        num_servers: int = 1,
        message_nbytes: int = 4 << 20,
        ports: Sequence[int] = (),
    ) -> None:
        super().__init__(
            comm,
            tensors,
            parameters=parameters,
            optimizer=optimizer,
            timeout_s=timeout_s,
            num_required=None,
            num_servers=num_servers,
            message_nbytes=message_nbytes,
            ports=ports,
        )


ENGINE = AsynchronousServers
