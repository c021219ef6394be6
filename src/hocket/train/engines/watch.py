"""Whether other ranks still live, for waits that no communicator sees."""

from __future__ import annotations

import numpy as np

from hocket.comm import Communicator


class Watch:
    """Notices that a rank has died or left while this one waits for something else.

    It has a receive in flight that nobody answers: it fails when a rank does.

    Args:
        comm: a communicator of all ranks that nobody else uses; the watch closes it.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        comm._is_watch = True
        self._work = (
            comm.irecv(np.zeros(1, np.uint8), (comm.rank + 1) % comm.size, timeout=1e9) if comm.size > 1 else None
        )

    def check(self) -> None:
        """Raise the error by which the communicator ended, if it did.

        Raises:
            PeerFailure: a rank has died.
            Aborted: a rank has left.
        """
        if self._work is not None:
            self._work.test()

    def close(self) -> None:
        """Close the communicator."""
        self._comm._leave(0.0)
