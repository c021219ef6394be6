"""Messages over a socket that an event loop watches."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import weakref
from dataclasses import dataclass
from typing import Any

from distributed.comm.core import CommClosedError
from distributed.system import MEMORY_LIMIT
from distributed.utils import ensure_memoryview

from hocket._native import FrameCarrier, FrameLoan, FrameStream, LoopWaker, MessageLog, close_loans
from hocket.dask.arrival import Arrival
from hocket.dask.devices import take_loans
from hocket.errors import HocketError

logger = logging.getLogger(__name__)
_MOST_READS = 10_000
"""Of what a peer has sent before its end."""
_RECEIPT_S = 0.001
"""A receipt waits so long for a message with which it can travel: most messages are answered at once."""
_UNUSED_S = 20.0
"""Segments of shared memory that were not used for so long go back to the system."""
NEVER = (1 << 64) - 1
"""As a number of bytes: no frame is so large."""


@dataclass(frozen=True)
class StreamOptions:
    """How messages travel.

    Args:
        is_local: whether it is a local socket, over which memory can be shared.
        lender: the peer's process, whose memory may be read; 0: it may not.
        lends: whether the peer may read this process's memory.
        carrier: brings large frames between hosts.
        device_lender: the peer's process, whose device memory can be opened; 0: it cannot.
        large_nbytes: frames of this size do not go through the socket, if there is another way.
        high_water: a writer waits while so many bytes wait for the peer.
        spin_s: a reader looks for so long without sleeping.
        timeout_s: a writer waits at most so long.
    """

    is_local: bool = False
    lender: int = 0
    lends: bool = False
    carrier: FrameCarrier | None = None
    device_lender: int = 0
    large_nbytes: int = 64 << 10
    high_water: int = 64 << 20
    spin_s: float = 0.0
    timeout_s: float = 30.0


class _LoopStreams:
    """The streams of one event loop whose copies end in another thread, and which have segments."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.waker = LoopWaker()
        self._streams: dict[int, MessageStream] = {}
        self._loop = weakref.ref(loop)
        self._trimming: asyncio.TimerHandle | None = None

    def add(self, number: int, stream: MessageStream) -> None:
        if not self._streams:
            stream.loop.add_reader(self.waker.fileno(), self._collect)
        self._streams[number] = stream

    def remove(self, number: int) -> None:
        loop = self._loop()
        if self._streams.pop(number, None) is None or self._streams or loop is None:
            return
        if not loop.is_closed():
            loop.remove_reader(self.waker.fileno())
        if self._trimming is not None:
            self._trimming.cancel()
        _of_loops.pop(loop, None)  # Dask keeps loops and closed connections that nobody uses any more

    def trim_later(self) -> None:
        """Drop segments that are not used any more, after a while."""
        loop = self._loop()
        if self._trimming is None and loop and not loop.is_closed():
            self._trimming = loop.call_later(_UNUSED_S, self._trim)

    def _collect(self) -> None:
        for number in self.waker.ended():
            if number in self._streams:
                self._streams[number].collect()

    def _trim(self) -> None:
        self._trimming = None
        have_segments = [each.trim() for each in list(self._streams.values())]
        if any(have_segments):
            self.trim_later()


def _runs(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop runs in this thread."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopStreams] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


class MessageStream:
    """One end of a connection. All methods are called in the thread of its event loop.

    Args:
        sock: connected and non-blocking; the stream owns it.
        options: how messages travel.
        log: records each message; None: nothing does.
    """

    def __init__(self, sock: socket.socket, options: StreamOptions, log: MessageLog | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.options = options
        self._log = log
        self._sock: socket.socket | None = sock
        self._fd = sock.fileno()
        self._number = next(_numbers)
        self._streams: _LoopStreams | None = _of_loops.get(self.loop)
        if self._streams is None:
            self._streams = _of_loops[self.loop] = _LoopStreams(self.loop)
        self._frames = FrameStream(
            sock.fileno(),
            options.is_local,
            options.lender,
            options.lends,
            options.carrier,
            options.device_lender != 0,
            (options.large_nbytes, MEMORY_LIMIT, options.high_water),
            self._streams.waker,
            self._number,
        )
        self._spin_ns = round(1e9 * options.spin_s)
        self._why = ""
        self._is_closed_here = False
        self._reader: Arrival | None = None
        self._turn = asyncio.Lock()  # those who wait to write go on in their order
        self._writers: set[asyncio.Future[None]] = set()  # also a task that closes, beside one that writes
        self._receipt: asyncio.TimerHandle | None = None
        self._is_sending, self._is_reading = False, True
        self._is_late = False
        if options.is_local or options.carrier is not None:
            self._streams.add(self._number, self)
        self.loop.add_reader(self._fd, self._on_readable)

    @property
    def is_closed(self) -> bool:
        """Whether nothing more comes, and nothing can be sent."""
        return self._sock is None and (self._is_closed_here or not self._frames.has_message())

    @property
    def counts(self) -> tuple[int, ...]:
        """Messages and bytes sent, bytes of these that were lent, in shared memory, and carried; the same received."""
        counts: tuple[int, ...] = self._frames.counts()
        return counts

    @property
    def waiting_nbytes(self) -> int:
        """Bytes that wait for the peer."""
        nbytes: int = self._frames.waiting_nbytes()
        return nbytes

    async def read(self) -> list[Any]:
        """Return the frames of the next message; each is writable, in the memory of the host or of a device.

        Raises:
            CommClosedError: the connection is closed.
        """
        while True:
            frames = None if self._is_closed_here else self._take()
            if frames is not None:
                return await self._with_copies_of_loans(frames) if self._frames.has_loans() else frames
            if self._sock is None:
                raise CommClosedError(self._why)
            if self._spin_ns and self._frames.spin(self._spin_ns):
                self._on_readable()
                continue
            if self._reader is not None:
                raise RuntimeError("two tasks read from one connection: open another one")
            self._reader = Arrival(self.loop)
            try:
                await self._reader
            finally:
                self._reader = None

    async def write(self, frames: list[Any]) -> int:
        """Send a message, and return the number of its bytes; its frames must not change until the peer has them.

        It waits while many bytes of earlier messages wait for the peer.

        Raises:
            CommClosedError: the connection is closed.
        """
        begun = None if self._log is None else self._log.begin(self._frames)
        if self._turn.locked() or (self._sock is not None and self.waiting_nbytes > self.options.high_water):
            async with self._turn:
                await self._until(self.options.high_water)
        if self._sock is None:
            raise CommClosedError(self._why)
        try:
            try:
                nbytes: int = self._frames.send(frames)
            except BufferError:  # the bytes of a frame do not lie one after another
                nbytes = self._frames.send(
                    [each if isinstance(each, FrameLoan) else ensure_memoryview(each) for each in frames]
                )
            self._watch_writable()
            if self._streams is not None and self.options.is_local and nbytes >= self.options.large_nbytes:
                self._streams.trim_later()
            if self._log is not None and begun is not None:
                self._log.sent(begun, nbytes)
            return nbytes
        except HocketError as error:
            self._fail(error)
            raise CommClosedError(self._why) from None

    async def close(self) -> None:
        """Close the connection, once the peer has what was sent, or does not take it within the timeout."""
        try:
            if self._sock is not None and self.waiting_nbytes:
                await self._until(0)
                if self._sock is not None and self.waiting_nbytes:
                    logger.warning("%d bytes that the peer has not taken are lost", self.waiting_nbytes)
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the connection at once; from another thread than that of the loop, soon."""
        if not self.loop.is_closed() and not _runs(self.loop):
            self.loop.call_soon_threadsafe(self.abort)
            return
        self._is_closed_here = True
        self._end("the connection was closed on this end")

    def collect(self) -> None:
        """Go on after a copy in another thread has ended."""
        if self._sock is None:
            return
        try:
            self._frames.collect()
            self._after()
        except Exception as error:  # whatever it is, what comes after it cannot be believed
            self._fail(error)
        self._tell()

    def trim(self) -> bool:
        """Drop segments that were not used for a while; return whether there are others."""
        if self._sock is None:
            return False
        try:
            self._frames.trim(round(1e9 * _UNUSED_S))
            self._watch_writable()
        except HocketError as error:
            self._fail(error)
            return False
        has_segments: bool = self._frames.has_segments()
        return has_segments

    def _take(self) -> list[Any] | None:
        frames: list[memoryview | bytes] | None = self._frames.take()
        if frames is not None and self._log is not None:
            self._log.received(self._frames)
        if frames is not None and self._sock is not None:
            try:
                self._frames.collect()  # what the reader was too far behind for
                self._after()
            except Exception as error:
                self._fail(error)
        return frames

    async def _with_copies_of_loans(self, frames: list[Any]) -> list[Any]:
        """Copy what the peer has lent of its device memory, and tell it so."""
        copied = await take_loans(frames, self.options.device_lender)
        try:
            self._frames.end_loans()
            self._frames.collect()
            self._after()
        except HocketError as error:
            self._fail(error)
            raise CommClosedError(self._why) from None
        return copied

    async def _until(self, nbytes: int) -> None:
        """Wait until no more bytes than these wait for the peer; not longer than the timeout."""
        try:
            async with asyncio.timeout(self.options.timeout_s):
                while self._sock is not None and self.waiting_nbytes > nbytes:
                    await self._until_progress()
        except TimeoutError:
            if not self._is_late:
                logger.warning(
                    "%d bytes have waited for the peer for %g s: it does not read",
                    self.waiting_nbytes,
                    self.options.timeout_s,
                )
            self._is_late = True
        except HocketError as error:
            self._fail(error)

    async def _until_progress(self) -> None:
        """Wait until the peer has taken something, or sent something: it may wait for this end, too."""
        writer = self.loop.create_future()
        self._writers.add(writer)
        try:
            self._frames.pull_all()
            self._after()
            await writer
        finally:
            self._writers.discard(writer)

    def _on_readable(self) -> None:
        if self._sock is None:
            return
        try:
            is_open = self._frames.receive()
            self._after()
        except Exception as error:
            self._fail(error)
        else:
            if not is_open:
                self._end("the peer has closed the connection")
        self._tell()

    def _tell(self) -> None:
        """Wake those who wait for what may have come."""
        if self._reader is not None and self._frames.has_message():
            self._reader.come()
        self._tell_writers()

    def _tell_writers(self) -> None:
        for each in self._writers:
            if not each.done():
                each.set_result(None)

    def _after(self) -> None:
        """See to it that what is left is sent: bytes that the socket did not take, and receipts for the peer."""
        if self._frames.owes_receipt() and self._receipt is None and self._sock is not None:
            self._receipt = self.loop.call_later(_RECEIPT_S, self._send_receipt)
        self._watch_writable()
        self._watch_readable()

    def _send_receipt(self) -> None:
        self._receipt = None
        if self._sock is not None:
            self._flush()

    def _flush(self) -> None:
        try:
            self._frames.flush()
            self._watch_writable()
        except Exception as error:
            self._fail(error)

    def _watch_writable(self) -> None:
        if self._frames.has_unsent() == self._is_sending or self._sock is None:
            return
        self._is_sending = not self._is_sending
        if self._is_sending:
            self.loop.add_writer(self._fd, self._on_writable)
        else:
            self.loop.remove_writer(self._fd)

    def _watch_readable(self) -> None:
        """Read while the reader is not too far behind; and while a writer waits for the peer, which may wait, too."""
        if self._sock is None or self._is_reading != (self._frames.is_full() and not self._writers):
            return
        self._is_reading = not self._is_reading
        if self._is_reading:
            self.loop.add_reader(self._fd, self._on_readable)
        else:
            self.loop.remove_reader(self._fd)

    def _on_writable(self) -> None:
        self._flush()
        self._tell()

    def _fail(self, error: Exception) -> None:
        """End the stream after an error. If it was the end of the peer, what it sent before is here still."""
        for _ in range(_MOST_READS) if isinstance(error, HocketError) and self._sock is not None else ():
            before = self._frames.counts()
            try:
                if not self._frames.receive() or self._frames.counts() == before:
                    break
            except Exception:
                break
        self._end(str(error))

    def _end(self, why: str) -> None:
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self._why = why
        if self._streams is not None:
            self._streams.remove(self._number)
            self._streams = None
        if not self.loop.is_closed():
            self.loop.remove_reader(self._fd)
            if self._is_sending:
                self.loop.remove_writer(self._fd)
        # Before anything is freed that was lent: the peer believes no copy that ends after this.
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        sock.close()
        self._frames.end()
        if self.options.device_lender:
            close_loans(self.options.device_lender)  # the peer could not use that memory again
        if self._receipt is not None:
            self._receipt.cancel()
        self._tell_writers()
        if self._reader is not None and not self._reader.done():
            self._reader.come_soon()
