"""One rank of hocket in vgg.py: links to fit, or exchanges of all parameters, checked, then served.

vgg_rank.py hocket WHAT
    WHAT, as JSON: {"links": [bytes, ...]}, or {"sizes": [bytes, ...], "ways": {name: [[backend, algorithm], ...]}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np
from libraries import size_name

import hocket as hk
from hocket.measure import Contender, serve

RANKS_PER_HOST = 2
MESSAGE = "chain(num_blocks=1)"  # a broadcast between two ranks by this is one message


def link_contenders(comm: hk.Communicator, sizes: Sequence[int]) -> list[Contender]:
    """A message between two ranks of a host, and between two hosts; the other ranks wait."""
    contenders = []
    for name, ranks in (("inner", [0, 1]), ("outer", [0, RANKS_PER_HOST])):
        pair = comm.group(ranks) if comm.rank in ranks else None
        for nbytes in sizes:
            x = np.ones(nbytes, np.uint8)
            contenders.append(Contender(f"link {size_name(nbytes)}", name, _messages(pair, x)))
    return contenders


def _messages(pair: hk.Communicator | None, x: np.ndarray) -> Callable[[int], None]:
    def run(iterations: int) -> None:
        if pair is None:
            return
        for number in range(iterations):  # there and back
            pair.broadcast(x, number % 2, backend="mpi", algorithm=MESSAGE)

    return run


def exchange_contenders(
    comm: hk.Communicator, sizes: Sequence[int], ways: dict[str, list[list[str]]]
) -> list[Contender]:
    """All arrays from rank 0 to all ranks, one after the other as training with broadcasts does."""
    arrays = [np.zeros(nbytes // 4, np.float32) for nbytes in sizes]
    contenders = []
    for name, of_arrays in ways.items():
        run = _exchange(comm, arrays, of_arrays)
        for number, x in enumerate(arrays):
            x.fill(number if comm.rank == 0 else -1)
        run(1)
        for number, x in enumerate(arrays):
            if not (x == number).all():
                raise AssertionError(f"{name}: array {number} has {x[:4]}, not {number} everywhere")
        contenders.append(Contender("exchange", name, run))
    return contenders


def _exchange(
    comm: hk.Communicator, arrays: Sequence[np.ndarray], of_arrays: Sequence[Sequence[str]]
) -> Callable[[int], None]:
    calls = list(zip(arrays, of_arrays, strict=True))

    def run(iterations: int) -> None:
        for _ in repeat(None, iterations):
            for x, (backend, algorithm) in calls:
                comm.broadcast(x, 0, backend=backend, algorithm=algorithm)

    return run


def main() -> None:
    what = json.loads(sys.argv[2])
    comm = hk.init(backends=["mpi", "gloo"], policy=hk.Policy.fixed({"*": "mpi"}))
    contenders = (
        link_contenders(comm, what["links"])
        if "links" in what
        else exchange_contenders(comm, what["sizes"], what["ways"])
    )
    serve(contenders, comm.rank, comm.barrier)
    comm.finalize()


if __name__ == "__main__":
    main()
