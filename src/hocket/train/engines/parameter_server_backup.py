"""Synchronous parameter servers with backup workers: stale gradients are dropped.

An update takes the gradients of the ranks that are first; those of the last ones are dropped, and the ranks go on with
the new parameters (Chen et al., "Revisiting distributed synchronous SGD", arXiv 1604.00981; TensorFlow's
`SyncReplicasOptimizer`). So a slow rank holds up nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hocket.comm import Communicator
from hocket.errors import InvalidArgument
from hocket.train.checks import check_count
from hocket.train.engines.engine import TensorSpec
from hocket.train.engines.servers.optimizers import ServedOptimizer
from hocket.train.engines.updating_servers import UpdatingServers


class BackupServers(UpdatingServers):
    """Synchronous parameter servers that drop stale gradients.

    Args:
        comm, tensors, parameters, optimizer, timeout_s: see `UpdatingServers`.
        num_backups: number of ranks for whose gradients an update does not wait.
        num_servers, message_nbytes, ports: see `ParameterServer`; tensors are not cut.

    Raises:
        InvalidArgument: an update would wait for no rank.
    """

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """See `GradientEngine.check_options`."""
        super().check_options(options)
        check_count("num_backups", options["num_backups"], 0)

    def __init__(
        self,
        comm: Communicator,
        tensors: Sequence[TensorSpec],
        *,
        parameters: Sequence[torch.Tensor],
        optimizer: torch.optim.Optimizer | ServedOptimizer,
        timeout_s: float,
        num_backups: int = 1,
        num_servers: int = 1,
        message_nbytes: int = 4 << 20,
        ports: Sequence[int] = (),
    ) -> None:
        if num_backups >= comm.size:
            raise InvalidArgument(f"num_backups must be less than the {comm.size} ranks, not {num_backups}")
        super().__init__(
            comm,
            tensors,
            parameters=parameters,
            optimizer=optimizer,
            timeout_s=timeout_s,
            num_required=comm.size - num_backups,
            num_servers=num_servers,
            message_nbytes=message_nbytes,
            ports=ports,
        )


ENGINE = BackupServers
