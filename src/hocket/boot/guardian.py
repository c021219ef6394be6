"""A helper process that cleans up after a launcher that was killed.

The ranks themselves die with the launcher (PR_SET_PDEATHSIG). Their child processes do not, and the folder of reports
would remain. The guardian waits on a pipe whose other end only the launcher has; end of file means that the launcher
has ended, for any reason.

This file is run by its path, without site packages: it imports only the standard library.
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
        folder: folder to remove when the launcher dies.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # so that Ctrl-C and the end of the terminal do not reach it
        )

    def watch(self, process_group: int) -> None:
        """Kill a process group when the launcher dies."""
        self._send(f"{process_group}\n")

    def remove_too(self, pattern: str) -> None:
        """Remove files and folders when the launcher dies; `pattern` is an absolute glob pattern."""
        self._send(f"{pattern}\n")

    def dismiss(self) -> None:
        """Stop the guardian, after the launcher has cleaned up itself."""
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
            pass  # the guardian was killed; the job does not need it


def guard(folder: str) -> None:
    """Wait for the end of the launcher and clean up, unless its last line was "done"."""
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
