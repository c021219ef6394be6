"""Libraries with an injected fault, to test the suite itself: `shm!corrupt`, `shm!delay=200us`, `shm!slow=5%`.

`shm!again` has no fault, but runs in its own job.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hocket.bench.drivers.base import Binder, Call, Driver
from hocket.errors import InvalidArgument

AGAIN = "!again"
_FAULT_EXAMPLES = "corrupt, delay=200us, slow=5%, again"
Fault = Callable[[Call, tuple[Any, ...], int], Call]


class FaultyDriver(Driver):
    """A library with a fault on its last rank, or on all ranks.

    Args:
        driver: the library.
        fault: the fault, as written after the exclamation mark.
    """

    def __init__(self, driver: Driver, fault: str) -> None:
        self._driver, self._fault = driver, parse_fault(fault)
        self.name = f"{driver.name}!{fault}"
        self.rank, self.size = driver.rank, driver.size
        self.refusals, self.reduces_to_start = driver.refusals, driver.reduces_to_start

    def binders(self, api: str) -> Mapping[str, Binder]:
        return {op: self._inject(bind) for op, bind in self._driver.binders(api).items()}

    def barrier(self) -> object:
        return self._driver.barrier()

    def wait(self, requests: Sequence[Any]) -> object:
        return self._driver.wait(requests)

    def wait_objects(self, requests: Sequence[Any]) -> list[Any]:
        return self._driver.wait_objects(requests)

    def share(self, obj: Any) -> list[Any]:
        return self._driver.share(obj)

    def begin(self, op: str, *arguments: Any) -> Call:
        raise InvalidArgument(f"{self.name} has no non-blocking {op}: faults need calls that complete the operation")

    def prepare(self, op: str, *arguments: Any) -> Call:
        return self._inject(partial(self._driver.prepare, op))(*arguments)

    def shared(self, count: int, dtype: str) -> Any:
        return self._driver.shared(count, dtype)

    def finalize(self) -> None:
        self._driver.finalize()

    def _inject(self, bind: Binder) -> Binder:
        def bind_faulty(*arguments: Any, **options: Any) -> Call:
            call = bind(*arguments, **options)
            return self._fault(call, arguments, self.rank - self.size + 1)

        return bind_faulty


def parse_fault(text: str) -> Fault:
    """Return the function that makes a call faulty.

    Its arguments are the call, the arguments of the call, and a number that is 0 on the last rank only.

    Raises:
        InvalidArgument: the fault is unknown; lists the known ones.
    """
    for pattern, make in _FAULTS.items():
        if found := re.fullmatch(pattern, text):
            return make(*found.groups())
    raise InvalidArgument(f"there is no fault {text!r}; there are {_FAULT_EXAMPLES}")


def _corrupt(call: Call, arguments: tuple[Any, ...], from_last: int) -> Call:
    """Change one byte of the result on the last rank."""
    if from_last or not arguments:
        return call

    def call_and_corrupt() -> Any:
        found = call()
        memory = memoryview(arguments[0]).cast("B")
        if memory.nbytes:
            memory[memory.nbytes // 2] ^= 1
        return found

    return call_and_corrupt


def _delay(seconds: float) -> Fault:
    """Return the fault that delays each call on the last rank by `seconds`."""

    def fault(call: Call, arguments: tuple[Any, ...], from_last: int) -> Call:
        if from_last:
            return call

        def wait_and_call() -> Any:
            _spin_until(time.perf_counter() + seconds)
            return call()

        return wait_and_call

    return fault


def _slow(part: float) -> Fault:
    """Return the fault that makes each call on all ranks longer by a part of its time."""

    def fault(call: Call, arguments: tuple[Any, ...], from_last: int) -> Call:
        def call_slowly() -> Any:
            begin = time.perf_counter()
            found = call()
            end = time.perf_counter()
            _spin_until(end + part * (end - begin))
            return found

        return call_slowly

    return fault


def _spin_until(end: float) -> None:
    while time.perf_counter() < end:
        pass


_FAULTS: Mapping[str, Callable[..., Fault]] = {
    "corrupt": lambda: _corrupt,
    r"delay=(\d+)us": lambda microseconds: _delay(int(microseconds) * 1e-6),
    r"slow=(\d+(?:\.\d+)?)%": lambda percent: _slow(float(percent) / 100),
    "again": lambda: lambda call, arguments, from_last: call,
}
