"""A helper process that cleans up behind a launcher that was killed.

The ranks themselves die with the launcher (PR_SET_PDEATHSIG). Processes that they have started do not, and the folder
of reports would stay. The guardian sleeps on a pipe of which only the launcher has the other end; its end of file
says that the launcher is gone, however it went.

This file is run by its path, without site packages: it imports the standard library alone.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Guardian:
    """The launcher's side.

    Args:
        folder: what to remove when the launcher dies.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # neither Ctrl-C nor the end of the terminal is for it
        )

    def watch(self, process_group: int) -> None:
        """Have a process group killed when the launcher dies."""
        self._send(f"{process_group}\n")

    def remove_too(self, pattern: str) -> None:
        """Have files and folders removed when the launcher dies: those that a pattern with an absolute path names."""
        self._send(f"{pattern}\n")

    def dismiss(self) -> None:
        """End the guardian; the launcher has cleaned up itself."""
        self._send("done\n")
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.wait()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # someone has killed the guardian; the job does not need it


def guard(folder: str) -> None:
    """Wait for the launcher's end and clean up, unless its last word was "done"."""
    lines = sys.stdin.read().splitlines()
    if lines and lines[-1] == "done":
        return
    patterns = [line for line in lines if line.startswith("/")]
    for process_group in lines:
        if process_group not in patterns:
            try:
                os.killpg(int(process_group), signal.SIGKILL)
            except OSError:
                pass
    for path in (each for pattern in patterns for each in glob.glob(pattern)):
        try:
            os.unlink(path)
        except IsADirectoryError:
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            pass
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guard(sys.argv[1])
