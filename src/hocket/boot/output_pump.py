"""Forward the ranks' output to the launcher's output, as fast as it is read."""

from __future__ import annotations

import selectors
from collections.abc import Sequence

from hocket.boot.rank_output import OutputTarget, RankOutput
from hocket.boot.watcher import Watcher


class OutputPump:
    """Forwards the ranks' output when the watcher reports that it is ready.

    Args:
        targets: the launcher's outputs.
        watcher: waits for output of ranks and for writable targets.
    """

    def __init__(self, targets: Sequence[OutputTarget], watcher: Watcher) -> None:
        self._targets = targets
        self._watcher = watcher
        self._outputs: dict[int, RankOutput] = {}

    @property
    def num_queued(self) -> int:
        """Bytes written by ranks that have not been read yet."""
        return sum(target.num_queued for target in self._targets)

    def next_update_s(self) -> float | None:
        """Return the seconds until `update` is due even if nothing is ready; None: never."""
        held_s = [each.target.seconds_held(each) for each in self._outputs.values()]
        return min((each for each in held_s if each > 0), default=None)

    def add(self, output: RankOutput) -> None:
        """Start to forward an output of a rank."""
        self._outputs[output.fd] = output
        self._watcher.watch(output.fd, output.forward)

    def update(self) -> None:
        """Watch targets with queued bytes, and outputs whose target has room; called after each wait."""
        for target in self._targets:
            if target.num_queued > 0:
                self._watcher.watch(target.fd, target.flush, selectors.EVENT_WRITE)
            else:
                self._watcher.unwatch(target.fd)
        for fd, output in list(self._outputs.items()):
            if output.is_over:
                self._remove(output)
            elif output.target.is_full or output.target.seconds_held(output) > 0:
                self._watcher.unwatch(fd)
            else:
                self._watcher.watch(fd, output.forward)

    def finish(self) -> None:
        """Read the last output of the ranks, which have ended; it may remain queued."""
        for output in list(self._outputs.values()):
            self._remove(output)

    def _remove(self, output: RankOutput) -> None:
        output.finish()
        self._watcher.unwatch(output.fd)
        output.close()
        del self._outputs[output.fd]
