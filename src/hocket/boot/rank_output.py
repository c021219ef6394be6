"""The ranks' output by way of the launcher: whole lines only, those of each rank in its order.

Ranks that write to one terminal or file by themselves tear each other's lines, as text and end of a line often come by
two writes. Where the launcher's own output is a terminal, a rank's is a terminal of its own (a pty), so that programs
colour and draw as they do by themselves; else it is a pipe. Where both outputs of the launcher go to the same place,
so do both of a rank, and keep their order.

On a terminal the beginning of a line is shown at once, as with ``print("loading", end="", flush=True)``. Other ranks
wait up to 0.2 s for the end of that line; then their lines go below it.
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
_MOST_QUEUED_BYTES = 1 << 20  # then the ranks wait for who reads
_MOST_LAST_READS = 64  # of a pipe whose writer is over: all that it holds, even if a child of the rank writes for ever
HELD_S = 0.2  # so long other ranks wait for the end of a line that is shown
MOST_LINE_BYTES = 16 << 20  # what is longer is passed on in parts


class OutputTarget:
    """An output of the launcher, written to without ever waiting for its reader.

    Args:
        fd: file descriptor of the launcher.
    """

    def __init__(self, fd: int) -> None:
        mode = os.fstat(fd).st_mode
        self._socket = socket.socket(fileno=os.dup(fd)) if stat.S_ISSOCK(mode) else None
        self._may_wait = self._socket is not None or stat.S_ISFIFO(mode) or os.isatty(fd)
        self.fd = self._socket.fileno() if self._socket is not None else _own_description(fd, self._may_wait)
        self.is_terminal = os.isatty(fd)
        self.is_lost = False  # nobody reads it any more
        self._open_line_of: RankOutput | None = None  # who has begun a line and not ended it
        self._opened_s = 0.0
        self.error: OSError | None = None  # why something could not be written
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
        """Write what can be written now, and keep the rest for `flush`."""
        if text and not self.is_lost:
            self._queue.append(memoryview(text))
            self._num_queued += len(text)
            self.flush()

    def seconds_held(self, output: RankOutput) -> float:
        """Return how long an output has to wait for another one to end its line."""
        if self._open_line_of is None or self._open_line_of is output:
            return 0.0
        return max(0.0, self._opened_s + HELD_S - time.monotonic())

    def has_open_line_of(self, output: RankOutput) -> bool:
        """Return whether what this output writes now continues its line."""
        return self._open_line_of is output

    def write_of(self, output: RankOutput | None, text: bytes) -> None:
        """Write for an output, or for the launcher (None); where another one has an open line, below it."""
        if self._open_line_of not in (None, output):
            self.write(b"\n")
        self.write(text)
        is_open = not text.endswith((b"\n", b"\r"))
        self._open_line_of, self._opened_s = (output if is_open else None), time.monotonic()

    def flush(self) -> None:
        """Write what can be written now."""
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
                self.error = self.error or error  # a full disk, for one; there may be room again later
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
        # Whole lines at a time, and no more than is written in one go (POSIX: PIPE_BUF): others may write there, too.
        piece = bytes(text[:_WRITE_BYTES])
        piece = piece[: piece.rfind(b"\n") + 1] or piece
        if self._socket is not None:
            return self._socket.send(piece, socket.MSG_DONTWAIT)
        if os.get_blocking(self.fd) and not select.select([], [self.fd], [], 0)[1]:
            raise BlockingIOError
        return os.write(self.fd, piece)


def _own_description(fd: int, may_wait: bool) -> int:
    """Open an output once more where that makes a way to write without waiting that others do not share."""
    if may_wait:
        with contextlib.suppress(OSError):  # another user's, for one: then we look before we write
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.dup(fd)


class RankOutput:
    """Passes on one output of a rank, by whole lines.

    Never waits for the end of it: a process that the rank has started may keep it open for ever.

    Args:
        fd: reading end; made non-blocking, and closed by `close`.
        target: where the lines go.
        tag: what is put before each line.
    """

    def __init__(self, fd: int, target: OutputTarget, tag: bytes = b"") -> None:
        self.fd = fd
        self.target = target
        self.is_over = False  # the rank closed it, or nobody reads the launcher's output any more
        self._is_open = True
        self._tag = tag
        self._parts: list[bytes] = []
        self._num_pending = 0
        self._is_within_line = False
        os.set_blocking(fd, False)

    def forward(self) -> None:
        """Pass on the lines that are there."""
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
        # Of bytes, only these two characters and their pair end lines. A carriage return does because progress bars are
        # drawn with it.
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
        """Pass on what is there now, and end the last line if it has no end."""
        poll = select.poll()  # not select(), which knows 1,024 descriptors
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
        """Who writes to it from now on is told so (EPIPE)."""
        if self._is_open:
            self._is_open = False
            os.close(self.fd)

    def _pass_on_pending(self) -> None:
        self._pass_on(b"".join(self._parts))
        self._parts, self._num_pending = [], 0

    def _pass_on(self, text: bytes) -> None:
        if self._tag:
            goes_on = self._is_within_line and self.target.has_open_line_of(self)
            text = (b"" if goes_on else self._tag) + self._tag.join(text.splitlines(keepends=True))
        self.target.write_of(self, text)
        self._is_within_line = not text.endswith((b"\n", b"\r"))


@dataclass(frozen=True)
class OutputChannels:
    """Where a rank writes.

    Args:
        stdout, stderr: the rank's ends, which the launcher closes once the rank has them; None: inherited.
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
        """Close both sides: the rank could not be started."""
        self.close_rank_ends()
        for output in self.outputs:
            output.close()


class Outputs:
    """The launcher's outputs, and what ranks write to them.

    Args:
        are_inherited: ranks write to them directly.
    """

    def __init__(self, *, are_inherited: bool) -> None:
        fds = () if are_inherited else (1,) if os.path.sameopenfile(1, 2) else (1, 2)
        self.targets = [OutputTarget(fd) for fd in fds]

    def open(self, tag: bytes = b"") -> OutputChannels:
        """Make the ends for a rank that is about to start.

        Raises:
            OSError: there are too many descriptors.
        """
        if not self.targets:
            return OutputChannels()
        rank_ends: list[int] = []
        outputs: list[RankOutput] = []
        try:
            for target in self.targets:
                mine, ranks = _open_terminal(target.fd) if os.isatty(target.fd) else os.pipe()
                rank_ends.append(ranks)
                outputs.append(RankOutput(mine, target, tag))
        except OSError:
            for fd in rank_ends:
                os.close(fd)
            for output in outputs:
                output.close()
            raise
        return OutputChannels(rank_ends[0], rank_ends[-1], outputs)

    def close(self) -> None:
        """Say on standard error what could not be written, and why."""
        for target in self.targets:
            target.close()
            if target.error is not None:
                with contextlib.suppress(OSError):
                    os.write(2, f"hocket run: some of the ranks' output is lost: {target.error}\n".encode())


def _open_terminal(like: int) -> tuple[int, int]:
    """Make a terminal that passes on what is written to it as it is, and looks as large as another one."""
    try:
        mine, ranks = os.openpty()
    except OSError:  # there are no more, or none at all
        return os.pipe()
    tty.setraw(ranks, termios.TCSANOW)
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetwinsize(ranks, termios.tcgetwinsize(like))
    return mine, ranks
