"""What another host has sent of its recording, on the first host.

While the run goes on, the folder has what has come so far, and can be read and followed as any run that goes on. What
comes at the end waits beside it until all is there. Nothing of what is sent is believed before its name, size and place
are checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from hocket.boot.sealed import ProtocolError
from hocket.errors import RecorderError
from hocket.observe.host_growth import is_growing
from hocket.observe.recorder_head import BLOCK_NBYTES
from hocket.observe.saved import (
    HEAD,
    LIVE_FOLDER,
    PART_PREFIX,
    RECORDER_FILES,
    RUN_FILE,
    parse_description,
    save_progress,
)
from hocket.observe.sealed_stream import SealedStream
from hocket.observe.sparse_copy import write_sparsely
from hocket.trace.region import MOST_NBYTES as MOST_RECORDER_NBYTES

_PIECE_S = 30.0
"""Seconds to wait for the next piece of a content."""
_MOST_FILE_NBYTES = 1 << 40
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}")


class HostFolder:
    """The folder of another host in the folder of the run; for one thread.

    Args:
        folder: which does not exist yet.

    Attributes:
        most_live_files: how many files of a host are taken while the run goes on; others come at the end.

    Raises:
        OSError: nothing can be written there.
    """

    most_live_files = 1 << 18

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._part = folder.with_name(PART_PREFIX + folder.name)
        self._part.mkdir()
        self._is_shown = False
        """Whether what has come can be read."""
        self._num_live_files = 0

    @property
    def is_full(self) -> bool:
        """Whether no further file is taken while the run goes on."""
        return self._num_live_files >= self.most_live_files

    def describe(self, nbytes: int, stream: SealedStream) -> None:
        """Take a description of the run on that host; with the first one what comes can be read."""
        text = b"".join(stream.receive_content(nbytes, _PIECE_S)).decode(errors="replace")
        try:
            description = replace(parse_description(text, "a description"), exit_code=None)
        except RecorderError as error:
            raise ProtocolError(str(error)) from None
        save_progress(self.folder if self._is_shown else self._part, description, self.folder / LIVE_FOLDER)
        if not self._is_shown:
            (self._part / LIVE_FOLDER).mkdir(exist_ok=True)
            os.rename(self._part, self.folder)
            self._is_shown = True
            self._part.mkdir()  # on a full disk it may fail: `known_sizes` makes it when the host comes again

    def patch_head(self, head: tuple[str, int, list[int]], stream: SealedStream) -> None:
        """Take blocks of the head of a process's recorder; see `checked_head`."""
        name, nbytes, blocks = head
        path = self._live_file(Path(LIVE_FOLDER) / (RECORDER_FILES + name))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            left = iter(blocks)
            for piece in stream.receive_content(len(blocks) * BLOCK_NBYTES, _PIECE_S):
                if len(piece) % BLOCK_NBYTES:
                    raise ProtocolError("a piece of a head has not whole blocks")
                for at in range(0, len(piece), BLOCK_NBYTES):
                    os.pwrite(fd, piece[at : at + BLOCK_NBYTES], next(left) * BLOCK_NBYTES)
            os.ftruncate(fd, nbytes)
        finally:
            os.close(fd)

    def grow(self, growth: tuple[str, int, int], stream: SealedStream) -> None:
        """Take what a file has grown by; see `checked_growth`."""
        name, offset, nbytes = growth
        self._append(self._live_file(Path(name)), offset, stream.receive_content(nbytes, _PIECE_S))

    def add(self, content: object, stream: SealedStream) -> None:
        """Take a whole file, or the rest of one that has grown before."""
        name, offset, nbytes = _checked_file(content)
        pieces = stream.receive_content(nbytes, _PIECE_S)
        if is_growing(name.rpartition(".")[2]) and (offset or (self.folder / name).exists()):
            self._append(self.folder / name, offset, pieces)
            return
        if offset:
            raise ProtocolError("only files of events and series come in parts")
        with (self._part / name).open("xb") as file:
            for piece in pieces:
                write_sparsely(file, piece)
            file.truncate()

    def finish(self) -> None:
        """Note that all has come: the folder is that of a run that was recorded."""
        if not self._is_shown:
            os.rename(self._part, self.folder)
            return
        for path in sorted(self._part.iterdir(), key=lambda each: each.name == RUN_FILE):
            os.replace(path, self.folder / path.name)
        rmtree(self.folder / LIVE_FOLDER)
        self._part.rmdir()

    def known_sizes(self) -> dict[str, int]:
        """Return the sizes of the files that have grown, for a host whose connection was broken and that comes again.

        Raises:
            OSError: the folder cannot be read.
        """
        self._part.mkdir(exist_ok=True)
        if not self._is_shown:
            return {}
        with os.scandir(self.folder) as entries:
            return {each.name: each.stat().st_size for each in entries if is_growing(each.name.rpartition(".")[2])}

    def abandon(self) -> str:
        """Note that nothing more comes, unless the host comes again, and say where what was recorded is."""
        rmtree(self._part, ignore_errors=True)
        return "what it recorded stays there" + (f", what had come is in {self.folder.name}" if self._is_shown else "")

    def _live_file(self, name: Path) -> Path:
        if not self._is_shown:
            raise ProtocolError("a host must describe its run first")
        path = self.folder / name
        if not path.exists():
            if self.is_full:
                raise ProtocolError(f"more than {self.most_live_files} files while the run goes on")
            path.touch(exist_ok=False)
            self._num_live_files += 1
        return path

    def _append(self, path: Path, offset: int, pieces: Iterator[bytes]) -> None:
        """Append to a file that has a size: what comes twice, or too early, is refused."""
        size = path.stat().st_size if path.exists() else 0
        if size != offset:
            raise ProtocolError(f"a file has {size} bytes, but what begins at {offset} was sent")
        with path.open("ab") as file:
            for piece in pieces:
                file.write(piece)


def checked_growth(content: object) -> tuple[str, int, int]:
    """Return name, offset and size of what a file has grown by.

    Raises:
        ProtocolError: it is something else, or a file that does not grow.
    """
    name, offset, nbytes = _checked_file(content)
    if not name.rpartition(".")[0] or not is_growing(name.rpartition(".")[2]) or nbytes == 0:
        raise ProtocolError("only files of events and series grow")
    return name, offset, nbytes


def _checked_file(content: object) -> tuple[str, int, int]:
    match content:
        case [str(name), int(offset), int(nbytes)] if not any(type(each) is bool for each in content):
            is_name = _FILE_NAME.fullmatch(name) is not None and name != LIVE_FOLDER
            if is_name and min(offset, nbytes) >= 0 and offset + nbytes <= _MOST_FILE_NBYTES:
                return name, offset, nbytes
    raise ProtocolError("a file needs a name without special characters, an offset and a size")


def checked_description(content: object) -> int:
    """Return the size of a description.

    Raises:
        ProtocolError: it is something else, or too long.
    """
    if type(content) is not int or not 0 < content <= (HEAD.most_nbytes or 0):
        raise ProtocolError("a description needs a size")
    return content


def checked_head(content: object) -> tuple[str, int, list[int]]:
    """Return the process, the size of the recorder, and the numbers of the blocks of a head.

    Raises:
        ProtocolError: it is something else.
    """
    match content:
        case [str(name), int(nbytes), [_, *_] as blocks] if type(nbytes) is int:
            numbers = sorted({each for each in blocks if isinstance(each, int) and type(each) is int})
            is_sized = BLOCK_NBYTES <= nbytes <= MOST_RECORDER_NBYTES
            is_within = len(numbers) == len(blocks) and numbers[0] >= 0 and numbers[-1] * BLOCK_NBYTES < nbytes
            if _FILE_NAME.fullmatch(name) is not None and is_sized and is_within:
                return name, nbytes, [*blocks]  # type: ignore[list-item]
    raise ProtocolError("a head needs the name of a process, a size, and numbers of blocks")
