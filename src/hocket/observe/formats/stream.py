"""Files that are written piece by piece, compressed if their name says so."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from hocket.whole_file import write_whole


def write_stream(path: Path, pieces: Iterable[bytes]) -> None:
    """Write the pieces one after the other; the file is there as a whole or not at all.

    Args:
        path: of the file; with the ending .gz it is compressed.
        pieces: of its content.
    """

    def write(temporary: Path) -> None:
        is_compressed = path.suffix == ".gz"
        with gzip.open(temporary, "wb", compresslevel=4) if is_compressed else temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)

    write_whole(path, write)
