"""Non-blocking collectives that overlap with a matrix product: the part of their time that the product hides.

Four times are measured in the same rounds: the operation followed by its wait at once, the product alone, both
together, and, as a part of the time of both, the start of the operation.

    overlap = max(0, 100 - 100 * (both - product) / alone) percent

This is OMB's definition, but the computation is a real matrix product instead of a counting loop. It takes as long as
the operation.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from hocket.bench.drivers.base import Call, Driver
from hocket.bench.families.collectives import OMB_NAMES, OnMemory, benchmark_of
from hocket.bench.registry import Prepared, Setting
from hocket.bench.result import ALONE, BEGIN, PRODUCT
from hocket.measure.contender import Contender, sample

_ROWS = 48  # of each matrix: a product takes some ten microseconds
_NUM_TRIALS = 5


class Overlapped(Prepared):
    """A non-blocking operation that overlaps with a matrix product."""

    def __init__(self, setting: Setting, op: str) -> None:
        self._wait = setting.driver.wait
        self._operation = OnMemory(setting, op, bind=partial(self._bind, setting.driver))
        self._a, self._b = np.random.default_rng(0).standard_normal((2, _ROWS, _ROWS))
        self._out = np.empty_like(self._a)
        self.parts = {ALONE: self._operation.run, PRODUCT: self._compute}
        self.shares = {BEGIN: self._time_begin}
        trials = [Contender("", "", run) for run in (self._operation.run, self._multiply)]
        alone_s, product_s = (
            min(sample(each, 1, setting.driver.barrier, time.perf_counter) for _ in range(_NUM_TRIALS))
            for each in trials
        )
        self._num_products = max(setting.driver.share(max(1, round(alone_s / product_s))))

    def run(self, iterations: int) -> None:
        begin, wait, multiply = self._begin, self._wait, self._multiply
        for _ in repeat(None, iterations):
            request = begin()
            multiply(self._num_products)
            wait([request])

    def check(self, turn: int) -> None:
        self._operation.check(turn)

    def _time_begin(self, iterations: int) -> float:
        """Do the same as `run`, and return the seconds that starting the operations takes.

        It is a separate loop because reading the clock adds to the time of a short operation.
        """
        begin, wait, multiply, clock = self._begin, self._wait, self._multiply, time.perf_counter
        seconds = 0.0
        for _ in repeat(None, iterations):
            start = clock()
            request = begin()
            seconds += clock() - start
            multiply(self._num_products)
            wait([request])
        return seconds

    def _compute(self, iterations: int) -> None:
        for _ in repeat(None, iterations):
            self._multiply(self._num_products)

    def _multiply(self, times: int) -> None:
        a, b, out = self._a, self._b, self._out
        for _ in repeat(None, times):
            np.matmul(a, b, out=out)

    def _bind(self, driver: Driver, op: str, *arguments: Any) -> Call:
        """Return a call that starts the operation and waits for it at once."""
        self._begin = begin = driver.begin(op, *arguments)
        wait = driver.wait
        return lambda: wait([begin()])


BENCHMARKS = tuple(
    benchmark_of(
        op,
        f"i{op}",
        f"Non-blocking {OMB_NAMES[op].capitalize()}",
        partial(Overlapped, op=op),
        f"{op} overlapped with a matrix product: the time of both, and the part of {op} that the product hides",
        [f"i{OMB_NAMES[op]}"],
        family="non-blocking collective",
        takes_objects=False,
    )
    for op in OMB_NAMES
)
