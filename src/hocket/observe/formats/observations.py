"""Times of a run's collectives for `hocket tune learn`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hocket.observe.analysis.observations import observations_of
from hocket.tune.observations import save_observations

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun

ENDINGS = (".observations.json",)


def write_observations(run: ObservedRun, path: Path) -> None:
    """Write the times; the file is there as a whole or not at all.

    Args:
        run: from `open_run`.
        path: of the file.
    """
    save_observations(observations_of(run), path)
