"""Sizes as users write them."""

from __future__ import annotations

import pytest

from hocket.cli._sizes import read_size
from hocket.errors import InvalidArgument

from ..naming import Given, raises


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0), ("16", 16), ("16B", 16), ("16b", 16), (" 16 ", 16), ("007", 7), ("64KiB", 64 << 10),
        ("64kib", 64 << 10), ("64KB", 64 << 10), ("64k", 64 << 10), ("1M", 1 << 20), ("1MiB", 1 << 20),
        ("2 GiB", 2 << 30), ("3gb", 3 << 30), ("1024G", 1 << 40),
    ],
)  # fmt: skip
def test_size(text: str, nbytes: int) -> None:
    assert read_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", " ", "KiB", "-16", "+16", "1.5MiB", "1e3", "0x10", "16 bytes", "1TiB", "1KiM", "1 K iB", "16,32", "²"]
)
def test_no_size(text: str) -> None:
    with raises(InvalidArgument, names=(Given(repr(text)), "16", "64KiB", "1MiB")):
        read_size(text)
