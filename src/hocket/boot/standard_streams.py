"""Standard input, output and error where whoever started this process has closed them."""

from __future__ import annotations

import os
import sys


def keep_standard_streams() -> None:
    """Open those that are closed on /dev/null, before something else, a socket for one, gets their numbers."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != fd:
                os.dup2(nothing, fd)
                os.close(nothing)
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))
