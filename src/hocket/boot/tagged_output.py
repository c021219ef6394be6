"""The ranks' output line by line, each line behind the number of its rank."""

from __future__ import annotations

import os
import select
from typing import IO

_CHUNK_BYTES = 1 << 16


class TaggedOutput:
    """Copies one pipe of a rank to a file descriptor of the launcher.

    Never waits for the end of the pipe: a process that the rank has started may keep it open for ever.

    Args:
        rank: number to put before each line.
        pipe: reading end of the rank's stdout or stderr; made non-blocking.
        target_fd: where the lines go.
    """

    def __init__(self, rank: int, pipe: IO[bytes], target_fd: int) -> None:
        self._tag = b"[%d] " % rank
        self._pipe = pipe
        self._target_fd = target_fd
        self._pending = b""
        os.set_blocking(pipe.fileno(), False)

    def forward(self) -> bool:
        """Copy the lines that are there.

        Returns:
            False at the end: the rank closed the pipe, or nobody reads the launcher's output any more.
        """
        try:
            chunk = os.read(self._pipe.fileno(), _CHUNK_BYTES)
        except BlockingIOError:
            return True
        # Of bytes, only these two characters and their pair end lines. A carriage return does because progress bars are
        # drawn with it.
        complete = (self._pending + chunk).splitlines(keepends=True)
        self._pending = complete.pop() if complete and not complete[-1].endswith((b"\n", b"\r")) else b""
        if len(self._pending) >= _CHUNK_BYTES or (not chunk and self._pending):
            complete, self._pending = [*complete, self._pending + b"\n"], b""
        return self._write(b"".join(self._tag + line for line in complete)) and bool(chunk)

    def finish(self) -> None:
        """Copy what is in the pipe now, and the last line if it has no end."""
        while select.select([self._pipe], [], [], 0)[0]:
            if not self.forward():
                return
        if self._pending:
            self._write(self._tag + self._pending + b"\n")

    def _write(self, text: bytes) -> bool:
        while text:
            try:
                text = text[os.write(self._target_fd, text) :]
            except BlockingIOError:  # a terminal that some other program has made non-blocking
                select.select([], [self._target_fd], [])
            except OSError:
                return False
        return True
