"""The product of operation, data type, reduction, root and size, with the sizes at the borders of the core."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hocket import _native

from .data import DTYPES, reductions_of

KIB64 = 64 << 10
_LINE = _native.CONSTANTS["line_bytes"]
_ODD_ITEMS = (0, 1, 3, 17, 251)
_Shape = tuple[str, str, int, str, int]
_DIVIDED = ("reduce_scatter", "all_to_all")  # the core chooses by the size of the array of all blocks


@dataclass(frozen=True)
class Case:
    """One call. `count`: items of the array, of one block for all_gather, reduce_scatter and all_to_all."""

    number: int
    op: str
    dtype: str
    count: int
    reduction: str = "sum"
    root: int = -1

    def __str__(self) -> str:
        words = [f"case {self.number}: {self.op} of {self.count} {self.dtype}"]
        if self.op in ("all_reduce", "reduce", "reduce_scatter"):
            words.append(self.reduction)
        if self.root >= 0:
            words.append(f"root {self.root}")
        return ", ".join(words)


def border_bytes(num_ranks: int) -> list[int]:
    """Sizes up to 64 KiB at which the core changes its method: line, eager, slice, ring and chunk borders."""
    constants = _native.CONSTANTS
    borders = {constants[name] for name in ("inline_bytes", "line_bytes", "eager_bytes", "ring_message_bytes")}
    borders |= {constants[name] for name in constants if name.endswith("chunk_bytes") and constants[name] <= KIB64}
    # Each rank's slice begins on a line: one line each, two lines for some, and the first sizes above the eager size.
    borders |= {num_ranks * _LINE, (num_ranks + 1) * _LINE, (constants["eager_bytes"] // _LINE + num_ranks) * _LINE}
    return sorted(borders | {KIB64})


def item_counts(dtype: str, num_ranks: int, blocks: int = 1) -> list[int]:
    """Numbers of items per block for which `blocks` blocks have each border size, one item less and one more."""
    itemsize = DTYPES[dtype].itemsize
    counts = set(_ODD_ITEMS)
    for border in border_bytes(num_ranks):
        at = border // (itemsize * blocks)
        counts |= {max(at - 1, 0), at, at + 1}
    if blocks == 1:
        counts.add((KIB64 + itemsize) // itemsize)
    return sorted(counts)


def most_items(cases: Sequence[Case], num_ranks: int) -> dict[str, int]:
    """Return the items of the largest array per data type."""
    most: dict[str, int] = {}
    for case in cases:
        items = case.count * (num_ranks if case.op in _DIVIDED else 1)
        most[case.dtype] = max(most.get(case.dtype, 0), items)
    return most


def all_cases(num_ranks: int, seed: int = 0) -> list[Case]:
    """Every combination once, in an order that mixes kinds and sizes and is the same on all ranks."""
    shapes = [shape for dtype in DTYPES for shape in _shapes(dtype, num_ranks)]
    return _mixed(shapes + [("barrier", "uint8", 0, "sum", -1)] * 50, seed)


def large_cases(num_ranks: int, seed: int = 0) -> list[Case]:
    """Every pair of an operation and a size around the chunk borders, with varying data type, reduction and root."""
    chunk = _native.chunk_bytes(num_ranks)
    constants = _native.CONSTANTS
    broadcast = constants["broadcast_most_chunk_bytes"]
    borders = {chunk, 2 * chunk, 3 * chunk + 12_352, constants["bulk_bytes"]}
    borders |= {16 * broadcast, constants["bulk_slots"] * constants["bulk_bytes"]}
    turn = itertools.count(seed)
    shapes: list[_Shape] = []
    for op in ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        for border in sorted(borders):
            for extra in (-1, 0, 1):
                number = next(turn)
                dtype = list(DTYPES)[number % len(DTYPES)]
                reduction = reductions_of(dtype)[number % len(reductions_of(dtype))]
                root = number // 3 % num_ranks if op in ("reduce", "broadcast") else -1
                blocks = num_ranks if op in _DIVIDED else 1
                shapes.append((op, dtype, border // (DTYPES[dtype].itemsize * blocks) + extra, reduction, root))
    return _mixed(shapes, seed)


def _mixed(shapes: list[_Shape], seed: int) -> list[Case]:
    random.Random(seed).shuffle(shapes)
    return [Case(number, *shape) for number, shape in enumerate(shapes)]


def _shapes(dtype: str, num_ranks: int) -> Iterator[_Shape]:
    for count in item_counts(dtype, num_ranks):
        yield "all_gather", dtype, count, "sum", -1
        yield "send_recv", dtype, count, "sum", -1
        for root in range(num_ranks):
            yield "broadcast", dtype, count, "sum", root
        for reduction in reductions_of(dtype):
            yield "all_reduce", dtype, count, reduction, -1
            for root in range(num_ranks):
                yield "reduce", dtype, count, reduction, root
    for count in item_counts(dtype, num_ranks, num_ranks):
        yield "all_to_all", dtype, count, "sum", -1
        for reduction in reductions_of(dtype):
            yield "reduce_scatter", dtype, count, reduction, -1
