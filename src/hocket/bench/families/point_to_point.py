"""Messages between pairs of ranks: round trips, and windows of many messages in flight."""

from __future__ import annotations

import pickle
from functools import partial
from itertools import repeat
from typing import Any

from hocket.bench.arrays import Arrays
from hocket.bench.drivers.base import Call
from hocket.bench.families.collectives import compare, itemsize_of
from hocket.bench.patterns import pattern
from hocket.bench.registry import Benchmark, Prepared, Setting
from hocket.measure.loops import Loop, nothing, there_and_back

_MARGIN = 1024  # bytes by which a received pickle may be larger than that of the own object


class MessagePair:
    """A message from this rank to its partner, and a message from the partner to this rank.

    Args:
        setting: the setting of the benchmark.
        all_pairs: True: ranks i and i + size / 2 are partners; False: ranks 0 and 1 are partners, the others have none.

    Attributes:
        partner: rank of the partner; None: this rank does not communicate.
        is_first: whether this rank sends first.
        has_objects: whether messages are objects.
        wait: waits for messages that were started.
    """

    def __init__(self, setting: Setting, all_pairs: bool) -> None:
        driver, point = setting.driver, setting.point
        half = driver.size // 2 if all_pairs else 1
        self.is_first = driver.rank < half
        has_part = driver.rank < 2 * half
        self.partner = (driver.rank + half if self.is_first else driver.rank - half) if has_part else None
        self._setting = setting
        self.has_objects = point.has_objects
        self.wait = driver.wait_objects if point.has_objects else driver.wait
        self._count = point.nbytes // itemsize_of(point.dtype)
        self._arrays = Arrays(setting)
        if self.has_objects:
            self._x = self._out = self._arrays.of(pattern(self._count, point.dtype, 0, 0) * 0)
        else:
            self._x, self._out = (self._arrays.make(self._count, role) for role in ("x", "out"))

    def bind(self, op: str) -> Call:
        """Return send, isend, recv or irecv, bound to this rank's arrays and its partner."""
        arguments: list[Any] = [self._out if op.endswith("recv") else self._x]
        if self.has_objects and op.endswith("recv"):
            arguments = [len(pickle.dumps(self._x)) + _MARGIN] if op == "irecv" else []
        return self._setting.driver.bind(self._setting.point.api, op, *arguments, self.partner)

    def bind_acknowledgement(self) -> tuple[Call, Call]:
        """Return the send and the receive of a message of four bytes."""
        driver, point = self._setting.driver, self._setting.point
        if self.has_objects:
            return driver.bind(point.api, "send", b"ack.", self.partner), driver.bind(point.api, "recv", self.partner)
        ack = self._setting.kind.make(4, "uint8")
        return driver.bind("buffer", "send", ack, self.partner), driver.bind("buffer", "recv", ack, self.partner)

    def check(self, turn: int, nonblocking: bool = False) -> None:
        """Exchange one message in each direction, and compare the received one.

        Args:
            turn: number that selects the content.
            nonblocking: whether to use isend and irecv.
        """
        if self.partner is None:
            return
        point, rank = self._setting.point, self._setting.driver.rank
        own, expected = (pattern(self._count, point.dtype, each, turn) for each in (rank, self.partner))
        zeros = self._x
        if self.has_objects:
            self._x = self._arrays.of(own)
        else:
            self._arrays.write(self._x, own)
            self._arrays.write(self._out, (expected + 1).astype(expected.dtype))  # right only if a message arrives
        found = self._exchange(nonblocking)
        self._x = zeros
        compare(self._arrays.read(found if self.has_objects else self._out), expected, point.key.name)
        if not self.has_objects:
            self._arrays.clear(self._x)
            self._arrays.clear(self._out)

    def _exchange(self, nonblocking: bool) -> Any:
        if nonblocking:
            found = self.wait([call() for call in (self.bind("irecv"), self.bind("isend"))])
            return found[0] if isinstance(found, list) else None
        send, recv = self.bind("send"), self.bind("recv")
        if self.is_first:
            send()
            return recv()
        found = recv()
        send()
        return found


class PingPong(Prepared):
    """A message to the partner, and one back."""

    def __init__(self, setting: Setting, all_pairs: bool) -> None:
        pair = self._pair = MessagePair(setting, all_pairs)
        self._loop: Loop = nothing
        if pair.partner is not None:
            self._loop = there_and_back(0 if pair.is_first else 1, pair.bind("send"), pair.bind("recv"))

    def run(self, iterations: int) -> None:
        self._loop(iterations)

    def check(self, turn: int) -> None:
        self._pair.check(turn)


class Streams(Prepared):
    """A window of messages in flight in one or both directions, and an acknowledgement when all have arrived."""

    def __init__(self, setting: Setting, all_pairs: bool, both_ways: bool) -> None:
        pair = self._pair = MessagePair(setting, all_pairs)
        self._window = setting.point.window
        self._loop: Loop = nothing
        if pair.partner is not None:
            one_way = ("isend",) if pair.is_first else ("irecv",)
            calls = [pair.bind(op) for op in (("irecv", "isend") if both_ways else one_way)]
            send_ack, recv_ack = pair.bind_acknowledgement()
            acks = [recv_ack, send_ack] if pair.is_first else [send_ack, recv_ack]
            self._loop = partial(self._run_windows, calls, acks if both_ways else acks[:1])

    def run(self, iterations: int) -> None:
        self._loop(iterations)

    def check(self, turn: int) -> None:
        self._pair.check(turn, nonblocking=True)

    def _run_windows(self, calls: list[Call], acks: list[Call], iterations: int) -> None:
        wait, window = self._pair.wait, self._window
        for _ in repeat(None, iterations):
            requests: list[Any] = []
            for call in calls:
                requests += [call() for _ in repeat(None, window)]
            wait(requests)
            for ack in acks:
                ack()


def _benchmark(name: str, title: str, alias: str, summary: str, make: Any, **options: Any) -> Benchmark:
    return Benchmark(
        name, title, options.pop("unit", "us"), make, summary, (alias,), "point to point", most_nbytes=4 << 20,
        least_ranks=2, **options,
    )  # fmt: skip


BENCHMARKS = (
    _benchmark(
        "latency", "Latency", "latency", "time of a message in one direction, from round trips",
        partial(PingPong, all_pairs=False), least_nbytes=0, messages=2,
    ),
    _benchmark(
        "multi_latency", "Multi Latency", "multi_lat", "latency between all pairs of ranks at the same time",
        partial(PingPong, all_pairs=True), least_nbytes=0, messages=2, needs_pairs=True,
    ),
    _benchmark(
        "bandwidth", "Bandwidth", "bw", "many messages in flight in one direction",
        partial(Streams, all_pairs=False, both_ways=False), unit="MB/s", has_window=True,
    ),
    _benchmark(
        "bidirectional_bandwidth", "Bi-Directional Bandwidth", "bibw", "many messages in flight in each direction",
        partial(Streams, all_pairs=False, both_ways=True), unit="MB/s", messages=2, has_window=True,
    ),
    _benchmark(
        "multi_bandwidth", "Multiple Bandwidth", "mbw_mr", "total bandwidth of all pairs of ranks at the same time",
        partial(Streams, all_pairs=True, both_ways=False), unit="MB/s", has_window=True, needs_pairs=True,
    ),
)  # fmt: skip
