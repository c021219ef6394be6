"""Pictures of recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MOST_NUMBERS = 16
"""Up to so many ranks, each cell has its number."""


def draw_matrix(cells: NDArray[np.number], title: str, path: Path) -> None:
    """Draw bytes between ranks.

    Args:
        cells: of shape (ranks, ranks).
        title: above the picture.
        path: of the picture; its suffix selects the format.
    """
    import numpy as np

    from hocket.comm.policy import format_nbytes
    from hocket.measure.pictures import load_pyplot

    pyplot = load_pyplot()
    side = float(np.clip(0.55 * len(cells) + 2, 4.5, 12))
    figure, axes = pyplot.subplots(figsize=(side + 1.5, side), layout="constrained")
    shown = np.where(cells > 0, cells, np.nan)
    image = axes.imshow(shown, cmap="viridis", interpolation="nearest", vmin=0)
    if len(cells) <= _MOST_NUMBERS:
        middle = np.nanmax(shown) / 2 if np.isfinite(shown).any() else 0
        for (row, column), value in np.ndenumerate(cells):
            if value > 0:
                text, color = format_nbytes(round(float(value))), "black" if value > middle else "white"
                axes.text(column, row, text, ha="center", va="center", size=7, color=color)
        axes.set_xticks(range(len(cells)))
        axes.set_yticks(range(len(cells)))
    axes.set_xlabel("receiving rank")
    axes.set_ylabel("sending rank")
    bar = figure.colorbar(image, ax=axes, shrink=0.8)
    bar.ax.yaxis.set_major_formatter(lambda value, _: format_nbytes(round(value)))
    axes.set_title(title, size=9, wrap=True, parse_math=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
