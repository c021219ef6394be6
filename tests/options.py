"""Values of pytest options, checked before collection."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """The `number`-th of `count` parts of all tests."""

    number: int
    count: int


def part(text: str) -> Part:
    """Read I/N, such as 2/4."""
    number, _, count = text.partition("/")
    if not (_is_number(number) and _is_number(count) and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"must be I/N with 1 <= I <= N, such as 2/4, not {text!r}")
    return Part(int(number), int(count))


def number_of_processes(text: str) -> int:
    """Read a whole number of 0 to 1000."""
    if not _is_number(text) or int(text) > 1000:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1000, not {text!r}")
    return int(text)


def factor(text: str) -> float:
    """Read a number of 1 to 1000."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 1000, not {text!r}")
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
