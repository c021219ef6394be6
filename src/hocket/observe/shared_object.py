"""Reads the dynamic symbols of a shared object (ELF, 64 bits, little-endian) without loading it."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hocket.errors import RecorderError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PAIR = struct.Struct("<QQ")
_LOADED, _DYNAMIC = 1, 2
_END, _STRINGS, _SYMBOLS, _STRINGS_NBYTES, _HASH = 0, 5, 6, 10, 0x6FFFFEF5
_MOST_SEGMENTS = 512
_MOST_DYNAMIC = 4096
_LONGEST_CHAIN = 4096
_LONGEST_NAME = 4096


@dataclass(frozen=True)
class DynamicSymbol:
    """A symbol that a shared object defines.

    Args:
        address: in the loaded object, from its base.
        nbytes: its size.
    """

    address: int
    nbytes: int


class SharedObject:
    """A shared object in a file.

    Args:
        path: of the file.

    Raises:
        RecorderError: the file cannot be read, or is no such object; names the file and the offset.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise RecorderError(f"{self.path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        fields = self._unpack(_HEADER, 0)
        if self._bytes(0, 7) != b"\x7fELF\x02\x01\x01":
            raise RecorderError(f"{self.path}, offset 0: no ELF file of 64 bits")
        self._segments = list(self._read_segments(fields[5], fields[9], fields[10]))
        self._dynamic = dict(self._read_dynamic())

    def close(self) -> None:
        """Close the file."""
        self._content.close()

    def __enter__(self) -> SharedObject:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def find(self, names: Collection[str]) -> dict[str, DynamicSymbol]:
        """Return those of the names that the object defines for others.

        Raises:
            RecorderError: the tables of the object are damaged, or it has none.
        """
        found = ((name, self._find(name.encode())) for name in names)
        return {name: symbol for name, symbol in found if symbol is not None}

    def read(self, symbol: DynamicSymbol, most_nbytes: int) -> bytes:
        """Return the initial value of a symbol.

        Raises:
            RecorderError: it is larger than `most_nbytes`, or not in the file.
        """
        if symbol.nbytes > most_nbytes:
            raise RecorderError(f"{self.path}: a symbol of {symbol.nbytes} bytes; at most {most_nbytes} are expected")
        return self._bytes(self._offset(symbol.address), symbol.nbytes)

    def search(self, pattern: re.Pattern[bytes], reach: int) -> tuple[bytes, ...] | None:
        """Return the groups of the first match in the first `reach` bytes of the file; None: there is no match."""
        found = pattern.search(self._content, 0, reach)
        return found.groups() if found else None

    def _find(self, name: bytes) -> DynamicSymbol | None:
        table, symbols = self._offset(self._tag(_HASH)), self._offset(self._tag(_SYMBOLS))
        num_buckets, first, num_words, _ = self._unpack(struct.Struct("<4I"), table)
        if num_buckets == 0:
            return None
        wanted = _gnu_hash(name)
        buckets = table + 16 + 8 * num_words
        (index,) = self._unpack(struct.Struct("<I"), buckets + 4 * (wanted % num_buckets))
        if index < first:
            return None
        for place in range(index, index + _LONGEST_CHAIN):
            (found,) = self._unpack(struct.Struct("<I"), buckets + 4 * num_buckets + 4 * (place - first))
            if found | 1 == wanted | 1:
                at, _, _, section, address, nbytes = self._unpack(_SYMBOL, symbols + _SYMBOL.size * place)
                if section != 0 and self._name(at, len(name)) == name + b"\0":
                    return DynamicSymbol(address, nbytes)
            if found & 1:
                return None
        raise RecorderError(f"{self.path}, offset {table}: a chain of more than {_LONGEST_CHAIN} symbols")

    def _name(self, at: int, length: int) -> bytes:
        if at >= self._tag(_STRINGS_NBYTES) or length > _LONGEST_NAME:
            return b""
        return self._bytes(self._offset(self._tag(_STRINGS)) + at, length + 1)

    def _tag(self, tag: int) -> int:
        if tag not in self._dynamic:
            raise RecorderError(f"{self.path}: its dynamic section has no entry {tag:#x}")
        return self._dynamic[tag]

    def _read_segments(self, offset: int, nbytes: int, count: int) -> Iterator[tuple[int, int, int, int]]:
        if nbytes != _SEGMENT.size or count > _MOST_SEGMENTS:
            raise RecorderError(f"{self.path}, offset {offset}: {count} program headers of {nbytes} bytes")
        for number in range(count):
            kind, _, at, address, _, in_file, _, _ = self._unpack(_SEGMENT, offset + number * _SEGMENT.size)
            yield kind, at, address, in_file

    def _read_dynamic(self) -> Iterator[tuple[int, int]]:
        for kind, at, _, nbytes in self._segments:
            if kind != _DYNAMIC:
                continue
            for place in range(min(nbytes // _PAIR.size, _MOST_DYNAMIC)):
                tag, value = self._unpack(_PAIR, at + place * _PAIR.size)
                if tag == _END:
                    return
                yield tag, value

    def _offset(self, address: int) -> int:
        for kind, at, begin, nbytes in self._segments:
            if kind == _LOADED and begin <= address < begin + nbytes:
                return at + address - begin
        raise RecorderError(f"{self.path}: address {address:#x} is in no segment of the file")

    def _unpack(self, layout: struct.Struct, offset: int) -> tuple[int, ...]:
        return layout.unpack(self._bytes(offset, layout.size))

    def _bytes(self, offset: int, nbytes: int) -> bytes:
        if offset + nbytes > len(self._content):
            raise RecorderError(f"{self.path}, offset {offset}: the file ends at {len(self._content)}")
        return self._content[offset : offset + nbytes]


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
