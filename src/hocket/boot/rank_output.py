"""Forward the ranks' output through the launcher: in whole lines, and in order for each rank.

If ranks write to one terminal or file directly, their lines mix, since the text and the end of a line are often two
writes. If the launcher's output is a terminal, each rank gets its own terminal (a pty), so that programs use colours
and progress bars; else it gets a pipe. If stdout and stderr of the launcher go to the same place, so do those of each
rank, and their order is kept.

On a terminal, an incomplete line is shown at once, as with ``print("loading", end="", flush=True)``. Other ranks wait
up to 0.2 s for its end; then their lines are written below it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import termios
import time
import tty
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_CHUNK_BYTES = 1 << 16
_WRITE_BYTES = 4096
_READER_IS_GONE = {errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.EIO, errno.ENXIO}
_MOST_QUEUED_BYTES = 1 << 20  # with more, the ranks wait for the reader
_MOST_LAST_READS = (
    64  # from a pipe whose writer has ended: enough to empty it, even if a child of the rank never stops writing
)
HELD_S = 0.2  # how long other ranks wait for the end of an incomplete line
MOST_LINE_BYTES = 16 << 20  # longer lines are forwarded in parts


class OutputTarget:
    """An output of the launcher; writing never waits for its reader.

    Args:
        fd: file descriptor of the launcher.
    """

    def __init__(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        self._socket = socket.socket(fileno=os.dup(fd)) if stat.S_ISSOCK(mode) else None
        self._may_wait = self._socket is not None or stat.S_ISFIFO(mode) or os.isatty(fd)
        self.fd = self._socket.fileno() if self._socket is not None else _own_description(fd, self._may_wait)
        self.is_terminal = os.isatty(fd)
        self.is_lost = False  # its reader has closed it
        self._open_line_of: RankOutput | None = None  # the output with an incomplete line
        self._opened_s = 0.0
        self.error: OSError | None = None  # the first error of a write
        self._queue: deque[memoryview] = deque()
        self._num_queued = 0

    @property
    def num_queued(self) -> int:
        """Bytes that wait for the reader."""
        return self._num_queued

    @property
    def is_full(self) -> bool:
        return self._num_queued > _MOST_QUEUED_BYTES

    def write(self, text: bytes) -> None:
        """Write as much as possible now, and queue the rest for `flush`."""
        if text and not self.is_lost:
            self._queue.append(memoryview(text))
            self._num_queued += len(text)
            self.flush()

    def seconds_held(self, output: RankOutput) -> float:
        """Return how long an output must wait for the end of another output's line."""
        if self._open_line_of is None or self._open_line_of is output:
            return 0.0
        return max(0.0, self._opened_s + HELD_S - time.monotonic())

    def has_open_line_of(self, output: RankOutput) -> bool:
        """Return whether the next text of this output continues its incomplete line."""
        return self._open_line_of is output

    def write_of(self, output: RankOutput | None, text: bytes) -> None:
        """Write text of an output, or of the launcher (None); below the incomplete line of another output, if any."""
        if self._open_line_of not in (None, output):
            self.write(b"\n")
        self.write(text)
        is_open = not text.endswith((b"\n", b"\r"))
        self._open_line_of, self._opened_s = (output if is_open else None), time.monotonic()

    def flush(self) -> None:
        """Write as much as possible now."""
        while self._queue:
            text = self._queue.popleft()
            try:
                num_written = self._write_some(text)
            except BlockingIOError:
                self._queue.appendleft(text)
                return
            except OSError as error:
                if self._may_wait and error.errno in _READER_IS_GONE:
                    self.is_lost, self._num_queued = True, 0
                    self._queue.clear()
                    return
                self.error = self.error or error  # for example a full disk; later writes may succeed
                num_written = len(text)
            self._num_queued -= num_written
            if num_written < len(text):
                self._queue.appendleft(text[num_written:])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        else:
            os.close(self.fd)

    def _write_some(self, text: memoryview) -> int:
        if not self._may_wait:
            return os.write(self.fd, text)
        # Whole lines, and at most as much as one write is atomic for (POSIX: PIPE_BUF): others may write there, too.
        piece = bytes(text[:_WRITE_BYTES])
        piece = piece[: piece.rfind(b"\n") + 1] or piece
        if self._socket is not None:
            return self._socket.send(piece, socket.MSG_DONTWAIT)
        if os.get_blocking(self.fd) and not select.select([], [self.fd], [], 0)[1]:
            raise BlockingIOError
        return os.write(self.fd, piece)


def _own_description(fd: int, may_wait: bool) -> int:
    """Open an output again, non-blocking, if possible; other processes do not share this file description."""
    if may_wait:
        with contextlib.suppress(OSError):  # for example of another user: then writes are preceded by select
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(fd)


class RankOutput:
    """Forwards one output of a rank, in whole lines.

    Never waits for its end of file: a child process of the rank may keep it open for ever.

    Args:
        fd: reading end; set to non-blocking, and closed by `close`.
        target: output that the lines are written to.
        tag: prefix of each line.
    """

    def __init__(self, fd: int, target: OutputTarget, tag: bytes = b"") -> None:
        self.fd = fd
        self.target = target
        self.is_over = False  # the rank has closed it, or the launcher's output is lost
        self._is_open = True
        self._tag = tag
        self._parts: list[bytes] = []
        self._num_pending = 0
        self._is_within_line = False
        os.set_blocking(fd, False)

    def forward(self) -> None:
        """Forward the available lines."""
        if self.target.is_lost:
            self.is_over = True
        if self.is_over:
            return
        try:
            chunk = os.read(self.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # the end of a pty
                raise
            chunk = b""
        # Only these two bytes and their pair end lines. A carriage return counts because progress bars use it.
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end:
            self._pass_on(b"".join([*self._parts, chunk[:end]]))
            self._parts, self._num_pending = [], 0
        if end < len(chunk):
            self._parts.append(chunk[end:])
            self._num_pending += len(chunk) - end
        if self._parts and (self.target.is_terminal or self._num_pending > MOST_LINE_BYTES):
            self._pass_on_pending()
        self.is_over = not chunk or self.target.is_lost

    def finish(self) -> None:
        """Forward all available output, and end the last line if it is incomplete."""
        poll = select.poll()  # not select(), which supports only 1,024 descriptors
        poll.register(self.fd, select.POLLIN)
        for _ in range(_MOST_LAST_READS):
            if self.is_over or not poll.poll(0):
                break
            self.forward()
        if self._parts:
            self._pass_on_pending()
        if self._is_within_line and self.target.has_open_line_of(self):
            self.target.write_of(self, b"\n")
        self._is_within_line = False

    def close(self) -> None:
        """Close the reading end: later writes of the rank fail with EPIPE."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)

    def _pass_on_pending(self) -> None:
        self._pass_on(b"".join(self._parts))
        self._parts, self._num_pending = [], 0

    def _pass_on(self, text: bytes) -> None:
        if self._tag:
            continues = self._is_within_line and self.target.has_open_line_of(self)
            text = (b"" if continues else self._tag) + self._tag.join(text.splitlines(keepends=True))
        self.target.write_of(self, text)
        self._is_within_line = not text.endswith((b"\n", b"\r"))


@dataclass(frozen=True)
class OutputChannels:
    """Both ends of a rank's outputs.

    Args:
        stdout, stderr: the rank's ends, which the launcher closes after the start of the rank; None: inherited.
        outputs: the launcher's ends.
    """

    stdout: int | None = None
    stderr: int | None = None
    outputs: Sequence[RankOutput] = ()

    def close_rank_ends(self) -> None:
        for fd in {self.stdout, self.stderr}:
            if fd is not None:
                os.close(fd)

    def close(self) -> None:
        """Close both ends; used if the rank could not be started."""
        self.close_rank_ends()
        for output in self.outputs:
            output.close()


class Outputs:
    """The launcher's outputs, and the channels from ranks to them.

    Args:
        are_inherited: whether ranks write to them directly.
    """

    def __init__(self, *, are_inherited: bool) -> None:
        fds = () if are_inherited else (1,) if os.path.sameopenfile(1, 2) else (1, 2)
        self.targets = [OutputTarget(fd) for fd in fds]

    def open(self, tag: bytes = b"") -> OutputChannels:
        """Create the channels of a rank that will be started.

        Raises:
            OSError: the limit of descriptors is reached.
        """
        if not self.targets:
            return OutputChannels()
        rank_ends: list[int] = []
        outputs: list[RankOutput] = []
        try:
            for target in self.targets:
                own_end, rank_end = _open_terminal(target.fd) if os.isatty(target.fd) else os.pipe()
                rank_ends.append(rank_end)
                outputs.append(RankOutput(own_end, target, tag))
        except OSError:
            for fd in rank_ends:
                os.close(fd)
            for output in outputs:
                output.close()
            raise
        return OutputChannels(rank_ends[0], rank_ends[-1], outputs)

    def close(self) -> None:
        """Close the outputs; report lost output and its reason on standard error."""
        for target in self.targets:
            target.close()
            if target.error is not None:
                with contextlib.suppress(OSError):
                    os.write(2, f"hocket run: some of the ranks' output is lost: {target.error}\n".encode())


def _open_terminal(like: int) -> tuple[int, int]:
    """Open a raw pty with the size of another terminal; a pipe if no pty is available."""
    try:
        own_end, rank_end = os.openpty()
    except OSError:
        return os.pipe()
    tty.setraw(rank_end, termios.TCSANOW)
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetwinsize(rank_end, termios.tcgetwinsize(like))
    return own_end, rank_end
