"""What an agent that has joined a run sends of its recording while the run goes on.

Files of events and of series only grow: sent is what they have grown by. What a process's recorder has besides its
events, such as names and totals, is sent by blocks that have changed, before the events that need it. All else comes at
the end, with the rest.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from hocket.boot.sealed import ProtocolError
from hocket.errors import RecorderError
from hocket.observe.drain import Drain
from hocket.observe.recorder_head import BLOCK_NBYTES, RecorderHead, read_head
from hocket.observe.saved import FOLLOWED_FILE, RECORDER_FILES, RECORDER_SUFFIX, description_text, load_description
from hocket.observe.sealed_stream import SealedStream
from hocket.observe.series import SERIES_SUFFIX
from hocket.trace import RINGS

_SEND_S = 30.0
_DESCRIBED_S = 1.0
_DESCRIBED_NBYTES_S = 64 << 10
"""A description that is longer is sent more rarely."""
_UNUSED = bytes(BLOCK_NBYTES)


class GrowthSender:
    """Sends what is new, when it is asked for; for one thread at a time.

    Args:
        folder: where the agent saves.
        drains: returns those of all processes.

    Attributes:
        folder: the same.
        sent: of each file, how many of its bytes were sent.
    """

    def __init__(self, folder: Path, drains: Callable[[], Sequence[Drain]]) -> None:
        self.folder = folder
        self._drains = drains
        self.sent: dict[str, int] = {}
        self._described_s: float | None = None
        """When a description may be sent again; None: none was sent."""
        self._digests: dict[str, dict[int, bytes]] = {}
        """Of the blocks that were sent, by process, while it runs."""
        self._ended: set[str] = set()
        """Processes whose last head was sent."""
        self._begun: set[str] = set()
        """Names of all files of which anything was sent, over any connection."""
        self._last = ""
        """Process that was sent last: the next answer begins behind it."""

    def answer(self, stream: SealedStream, most_nbytes: int, most_files: int) -> None:
        """Send the description, heads and at most so many bytes that files have grown by; what is left comes later.

        A head is sent whole, so that each answer has events; after it no other process begins if that was much.

        Args:
            stream: to the first host.
            most_nbytes: that files have grown by.
            most_files: that the first host takes while the run goes on, in all answers together. What is in others
                comes at the end.

        Raises:
            OSError: the connection is broken, or a file cannot be read.
        """
        has_more = False
        if self._describe(stream):
            # Sizes come first: a head that is read later has the names of all these events.
            files = self._grown()
            drains = {drain.name: drain for drain in self._drains()}
            names = sorted(files.keys() | {name for name, drain in drains.items() if self._is_due(drain)})
            first = next((at for at, name in enumerate(names) if name > self._last), 0)
            left_nbytes = total_nbytes = most_nbytes
            for name in (*names[first:], *names[:first]):
                if total_nbytes <= 0:
                    has_more = True
                    break
                if (drain := drains.get(name)) is not None and name not in self._ended:
                    if not self._may_send(RECORDER_FILES + name, most_files):
                        continue
                    head_nbytes = self._send_head(stream, drain)
                    if head_nbytes is None:
                        continue  # it is just being made, or goes on as another program
                    total_nbytes -= head_nbytes
                for file, size in files.get(name, ()):
                    nbytes = min(size - self.sent.get(file, 0), left_nbytes)
                    if nbytes > 0 and not self._may_send(file, most_files):
                        continue
                    has_more |= size - self.sent.get(file, 0) > nbytes
                    self._send_growth(stream, file, nbytes)
                    left_nbytes -= nbytes
                    total_nbytes -= nbytes
                self._last = name
        stream.send_object("grown", has_more, _SEND_S)

    def continue_from(self, known: Mapping[str, object]) -> None:
        """Go on over a new connection.

        Args:
            known: what the first host has of each file, in bytes.

        Raises:
            ProtocolError: it has more than there is.
        """
        self.sent.clear()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                size = known.get(entry.name, 0)
                if type(size) is not int or not 0 <= size <= entry.stat().st_size:
                    raise ProtocolError(f"it has {size!r:.40} bytes of a file of {entry.stat().st_size}")
                if size:
                    self.sent[entry.name] = size
        self._described_s = None
        self._digests.clear()
        self._ended.clear()

    def _describe(self, stream: SealedStream) -> bool:
        """Send what is known of the run here; return whether anything was ever sent."""
        if self._described_s is not None and monotonic() < self._described_s:
            return True
        try:
            description, _ = load_description(self.folder)
        except RecorderError:
            return self._described_s is not None  # the agent has just begun
        # How many events were saved of a process that has ended is to be compared with all of them only.
        text = description_text(replace(description, num_events={})).encode()
        self._described_s = monotonic() + _DESCRIBED_S + len(text) / _DESCRIBED_NBYTES_S
        stream.send_object("description", len(text), _SEND_S)
        stream.send_content(io.BytesIO(text), len(text), _SEND_S)
        return True

    def _grown(self) -> dict[str, list[tuple[str, int]]]:
        """Names and sizes of the files that have become longer, by process or device."""
        found: dict[str, list[tuple[str, int]]] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                name, _, kind = entry.name.rpartition(".")
                if name and is_growing(kind) and (size := entry.stat().st_size) > self.sent.get(entry.name, 0):
                    found.setdefault(name, []).append((entry.name, size))
        return found

    def _is_due(self, drain: Drain) -> bool:
        """Whether the head of a process without new events is to be sent: the first one, and the last one."""
        return drain.name not in self._ended and (drain.has_copy or drain.name not in self._digests)

    def _may_send(self, file: str, most_files: int) -> bool:
        """Whether a file was begun before, or is one that the first host still takes."""
        if file not in self._begun and len(self._begun) < most_files:
            self._begun.add(file)
        return file in self._begun

    def _send_head(self, stream: SealedStream, drain: Drain) -> int | None:
        """Send the blocks that have changed; return their size, or None if the head cannot be read."""
        has_ended = drain.has_copy
        path = self.folder / (drain.name + RECORDER_SUFFIX) if has_ended else drain.path
        head = read_head(path)
        if head is None or not drain.name.endswith(f"-{head.image}"):
            return None
        digests = self._digests.setdefault(drain.name, {})
        changed = _changed(head, digests)
        if changed:
            stream.send_object("head", [drain.name, head.nbytes, list(changed)], _SEND_S)
            content = b"".join(head.blocks[number] for number in changed)
            stream.send_content(io.BytesIO(content), len(content), _SEND_S)
            digests.update(changed)
        if has_ended:
            del self._digests[drain.name]
            self._ended.add(drain.name)
        return len(changed) * BLOCK_NBYTES

    def _send_growth(self, stream: SealedStream, name: str, nbytes: int) -> None:
        if nbytes <= 0:
            return
        offset = self.sent.get(name, 0)
        with (self.folder / name).open("rb") as file:
            file.seek(offset)
            stream.send_object("growth", [name, offset, nbytes], _SEND_S)
            stream.send_content(file, nbytes, _SEND_S)
        self.sent[name] = offset + nbytes


def send_rest(stream: SealedStream, folder: Path, sent: dict[str, int]) -> None:
    """Send all files of a folder, without what was sent of them already.

    Raises:
        OSError: the connection is broken, or a file cannot be read.
    """
    for path in sorted(folder.iterdir()):
        if path.name == FOLLOWED_FILE:
            continue
        with path.open("rb") as file:
            offset = sent.get(path.name, 0)
            nbytes = os.fstat(file.fileno()).st_size - offset
            file.seek(offset)
            stream.send_object("file", [path.name, offset, nbytes], _SEND_S)
            stream.send_content(file, nbytes, _SEND_S)


def is_growing(kind: str) -> bool:
    """Return whether files with such an ending only grow while a run goes on."""
    return kind in RINGS or "." + kind == SERIES_SUFFIX


def _changed(head: RecorderHead, digests: dict[int, bytes]) -> dict[int, bytes]:
    """Digests of the blocks that another one was sent of, or none."""
    found = {}
    for number, block in head.blocks.items():
        if block == _UNUSED and number not in digests:
            continue
        digest = hashlib.blake2b(block, digest_size=16).digest()
        if digests.get(number) != digest:
            found[number] = digest
    return found
