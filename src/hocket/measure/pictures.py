"""What all pictures share: the way to matplotlib, and the check of where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hocket.errors import BackendUnavailable, InvalidArgument
from hocket.whole_file import check_output

COLORS = ("#2a78b8", "#d1495b", "#3d8a5a", "#8a6fb0", "#c28a2b", "#5b6770")
ENDINGS = (".png", ".svg", ".pdf")


def load_pyplot() -> Any:
    """Return matplotlib.pyplot, set up to draw into files.

    Raises:
        BackendUnavailable: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise BackendUnavailable("pictures need matplotlib: pip install 'hocket[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def check_picture_path(path: Path) -> None:
    """Check that a picture can be written there, before anything is computed for it.

    Raises:
        InvalidArgument: its ending names no format, or nothing can be written there.
    """
    if path.suffix not in ENDINGS:
        raise InvalidArgument(f"{path} must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    check_output(path)
