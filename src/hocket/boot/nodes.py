"""The position of a launcher in a job on several hosts, with one launcher per host."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.errors import InvalidArgument


@dataclass(frozen=True)
class Nodes:
    """The hosts of a job. As with torchrun, all launchers get the same values, except `node_rank`.

    Args:
        num_nodes: number of hosts; all have the same number of ranks.
        node_rank: number of this host, 0 to num_nodes - 1; rank 0 is on host 0.
        master_addr: name or address of host 0, reachable from the other hosts.
        master_port: a free port of host 0; the eight ports after it are used, too.

    Raises:
        InvalidArgument: a value is invalid.
    """

    num_nodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise InvalidArgument(f"--nnodes must be 1 or more, not {self.num_nodes}")
        if not 0 <= self.node_rank < self.num_nodes:
            raise InvalidArgument(f"--node-rank must lie between 0 and {self.num_nodes - 1}, not {self.node_rank}")
        if self.num_nodes > 1 and self.master_port is None:
            raise InvalidArgument("several hosts need --master-addr and --master-port, equal on all of them")
        if self.master_port is not None and not 0 < self.master_port <= 65535:
            raise InvalidArgument(f"--master-port must lie between 1 and 65535, not {self.master_port}")
        if self.num_nodes > 1 and self.master_port == 65535:
            raise InvalidArgument(
                "--master-port must be 65534 or less for several hosts, which need a port after it, not 65535"
            )

    def ranks(self, num_local: int) -> range:
        """Return the ranks of this host."""
        first = self.node_rank * num_local
        return range(first, first + num_local)
