"""Replace standard input, output and error that were closed before this process started."""

from __future__ import annotations

import os
import sys


def keep_standard_streams() -> None:
    """Open closed standard streams on /dev/null, before another file or socket gets their numbers."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))
