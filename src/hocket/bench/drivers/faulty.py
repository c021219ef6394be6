"""Libraries with a fault put into them, by which the suite itself is tested: `shm!corrupt`, `shm!delay=200us`,
`shm!slow=5%`; and without any, but in a job of its own, `shm!again`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hocket.bench.drivers.base import Binder, Call, Driver
from hocket.errors import InvalidArgument

AGAIN = "!again"
_FORMS = "corrupt, delay=200us, slow=5%, and none at all: again"
Fault = Callable[[Call, tuple[Any, ...], int], Call]


class FaultyDriver(Driver):
    """A library whose last rank, or all of whose ranks, have a fault.

    Args:
        driver: the library.
        fault: what is wrong with it, as it stands behind the exclamation mark.
    """

    def __init__(self, driver: Driver, fault: str) -> None:
        self._driver, self._fault = driver, parse_fault(fault)
        self.name = f"{driver.name}!{fault}"
        self.rank, self.size = driver.rank, driver.size
        self.refusals, self.reduces_to_start = driver.refusals, driver.reduces_to_start

    def binders(self, api: str) -> Mapping[str, Binder]:
        return {op: self._spoil(bind) for op, bind in self._driver.binders(api).items()}

    def barrier(self) -> object:
        return self._driver.barrier()

    def wait(self, requests: Sequence[Any]) -> object:
        return self._driver.wait(requests)

    def wait_objects(self, requests: Sequence[Any]) -> list[Any]:
        return self._driver.wait_objects(requests)

    def share(self, obj: Any) -> list[Any]:
        return self._driver.share(obj)

    def shared(self, count: int, dtype: str) -> Any:
        return self._driver.shared(count, dtype)

    def finalize(self) -> None:
        self._driver.finalize()

    def _spoil(self, bind: Binder) -> Binder:
        def spoiled(*arguments: Any) -> Call:
            call = bind(*arguments)
            return self._fault(call, arguments, self.rank - self.size + 1)

        return spoiled


def parse_fault(text: str) -> Fault:
    """Return what makes a call faulty, of it, its arguments, and 0 on the last rank.

    Raises:
        InvalidArgument: there is no such fault.
    """
    for pattern, make in _FAULTS.items():
        if found := re.fullmatch(pattern, text):
            return make(*found.groups())
    raise InvalidArgument(f"there is no fault {text!r}; there are {_FORMS}")


def _corrupt(call: Call, arguments: tuple[Any, ...], from_last: int) -> Call:
    """Change one byte of the result, on the last rank."""
    if from_last or not arguments:
        return call

    def corrupted() -> Any:
        found = call()
        memory = memoryview(arguments[0]).cast("B")
        if memory.nbytes:
            memory[memory.nbytes // 2] ^= 1
        return found

    return corrupted


def _delay(seconds: float) -> Fault:
    """Begin later, on the last rank."""

    def fault(call: Call, arguments: tuple[Any, ...], from_last: int) -> Call:
        if from_last:
            return call

        def delayed() -> Any:
            _spin_until(time.perf_counter() + seconds)
            return call()

        return delayed

    return fault


def _slow(part: float) -> Fault:
    """Take a part longer, on all ranks."""

    def fault(call: Call, arguments: tuple[Any, ...], from_last: int) -> Call:
        def slowed() -> Any:
            begin = time.perf_counter()
            found = call()
            end = time.perf_counter()
            _spin_until(end + part * (end - begin))
            return found

        return slowed

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
