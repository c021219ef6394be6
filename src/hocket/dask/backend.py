"""The communication backends of `dask.distributed`: `hocket://` and `mpi://`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Comm, Listener
from distributed.comm.registry import Backend
from distributed.utils import ensure_ip, get_ip

from hocket.dask.connector import HocketConnector
from hocket.dask.listener import HocketListener
from hocket.dask.plain import check_encryption, listen_encrypted


class HocketBackend(Backend):
    """Addresses ``hocket://host:port``.

    Examples:
        >>> hk.dask.HocketBackend().get_address_host_port("127.0.0.1:8786")
        ('127.0.0.1', 8786)
    """

    scheme: ClassVar[str] = "hocket"

    def get_connector(self) -> HocketConnector:
        """See `Backend.get_connector`."""
        return HocketConnector(self.scheme)

    def get_listener(
        self, loc: str, handle_comm: Callable[[Comm], Awaitable[None]], deserialize: bool, **connection_args: Any
    ) -> Listener:
        """See `Backend.get_listener`."""
        if check_encryption(f"{self.scheme}://{loc}", connection_args):
            return listen_encrypted(self.scheme, loc, handle_comm, deserialize, **connection_args)
        return HocketListener(self.scheme, loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        """See `Backend.get_address_host`."""
        return self.get_address_host_port(loc)[0]

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        """See `Backend.get_address_host_port`."""
        host, port = parse_host_port(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        """See `Backend.resolve_address`."""
        host, port = parse_host_port(loc)
        return unparse_host_port(ensure_ip(host), port)

    def get_local_address_for(self, loc: str) -> str:
        """See `Backend.get_local_address_for`."""
        host, _ = parse_host_port(loc)
        return unparse_host_port(get_ip(ensure_ip(host)), None)  # type: ignore[no-untyped-call]


class MPIBackend(HocketBackend):
    """Addresses ``mpi://host:port``; the same as ``hocket://``.

    Examples:
        >>> hk.dask.MPIBackend().get_address_host("[::1]:8786")
        '::1'
    """

    scheme = "mpi"
