"""Pictures of recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def draw_matrix(cells: NDArray[np.number], title: str, path: Path) -> None:
    """Draw bytes between ranks.

    Args:
        cells: of shape (ranks, ranks).
        title: above the picture.
        path: of the picture; its suffix selects the format.
    """
    import numpy as np

    from hocket.measure.pictures import load_pyplot
    from hocket.observe.report import pictures

    pyplot = load_pyplot()
    side = float(np.clip(0.55 * len(cells) + 2, 4.5, 12))
    figure, axes = pyplot.subplots(figsize=(side + 1.5, side), layout="constrained")
    pictures.draw_matrix(axes, cells)
    axes.set_title(title, size=9, wrap=True, parse_math=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
