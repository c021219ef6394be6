"""The connection object of `dask.distributed`, over hocket's streams."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from distributed.comm.core import Comm, CommClosedError
from distributed.comm.utils import from_frames, to_frames

from hocket.dask.devices import DEVICE_SERIALIZERS, lend_frames
from hocket.dask.message_size import is_surely_small
from hocket.dask.opening import CommOpening
from hocket.dask.options import new_stream
from hocket.dask.plain import PlainComm, plain_comm
from hocket.dask.stream import NEVER, MessageStream

logger = logging.getLogger(__name__)
_COUNTS = (
    *("num_sent", "nbytes_sent", "nbytes_lent", "nbytes_shared", "nbytes_carried_out", "nbytes_device_out"),
    *("num_received", "nbytes_received", "nbytes_borrowed", "nbytes_mapped", "nbytes_carried_in", "nbytes_device_in"),
)


class HocketComm(Comm):
    """A connection between two Dask processes.

    Its first message in each direction is the handshake of distributed. Then it goes on over a stream, or over
    distributed's TCP protocol, if the peer speaks no other.

    Args:
        opening: of the connection.
        local_address, peer_address: with scheme.
        deserialize: whether messages are turned into objects as a whole.
    """

    def __init__(self, opening: CommOpening, local_address: str, peer_address: str, deserialize: bool) -> None:
        self._opening = opening
        self._stream: MessageStream | None = None
        self._plain: PlainComm | None = None
        self._path, self._peer_pid, self._lends_devices = "", 0, False
        self._local_addr, self._peer_addr = local_address, peer_address  # distributed reads these, too
        super().__init__(deserialize=deserialize)
        self._held: list[CommOpening | MessageStream] = [opening]
        self._finalizer = weakref.finalize(self, _abandon, self._held, f"{self!r}")
        self._finalizer.atexit = False

    async def read(self, deserializers: Any = None) -> Any:
        """See `Comm.read`."""
        try:
            if self._stream is None:
                return await self._read_without_stream(deserializers)
            frames = await self._stream.read()
        except BaseException:
            self.abort()  # also if it was cancelled: the reader could have taken a part of what follows
            raise
        try:
            return await from_frames(  # type: ignore[no-untyped-call]
                frames, deserialize=self.deserialize, deserializers=deserializers, allow_offload=self.allow_offload
            )
        except EOFError:
            self.abort()
            raise CommClosedError("the peer sent a message that ends too early") from None

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """See `Comm.write`."""
        stream = self._stream
        if stream is None:
            return await self._write_without_stream(msg, serializers, on_error)
        if stream.is_closed:
            raise CommClosedError(f"{self!r} is closed")
        frames = None
        if self._lends_devices and serializers is None:
            frames = await lend_frames(await self._serialized(msg, DEVICE_SERIALIZERS, on_error), self._peer_pid)
            self._lends_devices = frames is not None
        if frames is None:
            frames = await self._serialized(msg, serializers, on_error)
        try:
            return await stream.write(frames)
        except BaseException:
            self.abort()
            raise

    async def _serialized(self, msg: Any, serializers: Any, on_error: str) -> list[Any]:
        frames: list[Any] = await to_frames(  # type: ignore[no-untyped-call]
            msg,
            allow_offload=self.allow_offload and not is_surely_small(msg),
            serializers=serializers,
            on_error=on_error,
            context={"sender": self.local_info, "recipient": self.remote_info, **self.handshake_options},
            frame_split_size=NEVER,
        )
        return frames

    async def close(self) -> None:
        """See `Comm.close`."""
        self._finalizer.detach()  # whatever happens, the connection is closed at the end
        if self._stream is not None:
            await self._stream.close()
        elif self._plain is not None:
            await self._plain.close()
        else:
            self._opening.abort()

    def abort(self) -> None:
        """See `Comm.abort`."""
        self._finalizer.detach()
        if self._stream is not None:
            self._stream.abort()
        elif self._plain is not None:
            self._plain.abort()
        else:
            self._opening.abort()

    def closed(self) -> bool:
        """See `Comm.closed`."""
        if self._stream is not None:
            return self._stream.is_closed
        return self._opening.is_closed if self._plain is None else bool(self._plain.closed())

    @property
    def local_address(self) -> str:
        """See `Comm.local_address`."""
        return self._local_addr

    @property
    def peer_address(self) -> str:
        """See `Comm.peer_address`."""
        return self._peer_addr

    @property
    def same_host(self) -> bool:
        """Whether the peer runs on this host: then nothing is compressed."""
        return self._peer_pid != 0 or super().same_host

    @property
    def extra_info(self) -> dict[str, Any]:
        """How large frames travel ("path"), the peer's process, and what was sent and received so far."""
        if self._plain is not None:
            return self._plain.extra_info
        counts = dict(zip(_COUNTS, self._stream.counts, strict=True)) if self._stream is not None else {}
        return {"path": self._path, "peer_pid": self._peer_pid, **counts}

    async def _read_without_stream(self, deserializers: Any) -> Any:
        if self._plain is not None:
            return await self._plain.read(deserializers)  # type: ignore[no-untyped-call]
        greeting, connection = await self._opening.hear()
        if connection is None:
            self._plain = plain_comm(self._opening.detach(), self)
            self._finalizer.detach()  # it has one of its own
        else:
            self._path, self._peer_pid = connection.path, connection.peer_pid
            self._lends_devices = connection.lends_devices
            self._stream = self._held[0] = new_stream(connection, self._peer_addr)
        return greeting

    async def _write_without_stream(self, msg: Any, serializers: Any, on_error: str) -> int:
        if self._plain is None:
            try:
                return await self._opening.tell(msg)
            except BaseException:
                self.abort()
                raise
        for name in ("local_info", "remote_info", "handshake_options"):
            setattr(self._plain, name, getattr(self, name))
        nbytes: int = await self._plain.write(msg, serializers, on_error)  # type: ignore[no-untyped-call]
        return nbytes


def _abandon(held: list[CommOpening | MessageStream], name: str) -> None:
    """Close a connection that nobody has closed."""
    logger.warning("closing a connection that nobody has closed: %s", name)
    held[0].abort()
