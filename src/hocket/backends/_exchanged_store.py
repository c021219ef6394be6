"""A store of torch's without a server: by it the ranks of a group tell each other their addresses, once.

torch's own TCPStore listens on all interfaces and asks nobody who he is. gloo sets one value and then asks for those of
the others, so one exchange among the ranks is all that it needs.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from hocket.errors import Aborted

_SERVED_S = 3600.0  # by whoever drives the lanes, and has the deadline


class ExchangedStore(Store):
    """The values of all ranks, of which each sets its own before it asks for the first.

    A library calls it on a thread; `serve` is called meanwhile by the thread that may talk to the other ranks.

    Args:
        exchange: hands a text to all ranks of the group and returns the texts of all.
    """

    def __init__(self, exchange: Callable[[str], list[str]]) -> None:
        super().__init__()
        self._exchange = exchange
        self._own: dict[str, bytes] = {}
        self._all: dict[str, bytes] = {}
        self._is_wanted = threading.Event()
        self._is_there = threading.Event()
        self._failure: BaseException | None = None

    def set(self, key: str, value: Any) -> None:
        """Set a value, which the others get with the exchange."""
        if self._is_wanted.is_set():
            raise Aborted(f"{key!r} was set after the ranks had told each other what they know")
        self._own[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value of any rank."""
        self._await()
        if key not in self._all:
            raise Aborted(f"no rank has set {key!r}")
        return self._all[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all of them are there."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Return whether all of them are there."""
        self._await()
        return all(key in self._all for key in keys)

    def serve(self) -> None:
        """Exchange what the ranks have set, as soon as the library asks for what others have."""
        if not self._is_wanted.is_set() or self._is_there.is_set():
            return
        try:
            own = {key: base64.b64encode(value).decode() for key, value in self._own.items()}
            for rank, text in enumerate(self._exchange(json.dumps(own))):
                self._all |= _read_values(rank, text)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._is_there.set()

    def _await(self) -> None:
        self._is_wanted.set()
        if not self._is_there.wait(_SERVED_S) or self._failure is not None:
            raise Aborted(f"the ranks did not tell each other their addresses: {self._failure}")


def _read_values(rank: int, text: str) -> dict[str, bytes]:
    """Return what a rank has set; whoever hands the text on has authenticated the rank, and bounds the length."""
    try:
        told = json.loads(text)
        if not isinstance(told, dict):
            raise ValueError("it must be an object")
        return {key: base64.b64decode(value, validate=True) for key, value in told.items()}
    except (ValueError, TypeError, RecursionError) as error:
        raise Aborted(f"the addresses of rank {rank} are malformed: {error}") from error
