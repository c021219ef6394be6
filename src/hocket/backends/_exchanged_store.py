"""A torch store without a server: the ranks of a group exchange their addresses through it once.

torch's own TCPStore listens on all interfaces and does not authenticate its clients. gloo sets one value and then reads
the values of the other ranks, so one exchange between the ranks is enough.
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

_SERVED_S = 3600.0  # longer than any deadline of the thread that calls `serve`


class ExchangedStore(Store):
    """The values of all ranks. Each rank sets its own values before it reads the first one.

    A library calls it on its own thread. Meanwhile the thread that may communicate with the other ranks calls `serve`.

    Args:
        exchange: sends a text to all ranks of the group, and returns the texts of all.
    """

    def __init__(self, exchange: Callable[[str], list[str]]) -> None:
        super().__init__()
        self._exchange = exchange
        self._own: dict[str, bytes] = {}
        self._all: dict[str, bytes] = {}
        self._is_requested = threading.Event()
        self._is_exchanged = threading.Event()
        self._failure: BaseException | None = None

    def set(self, key: str, value: Any) -> None:
        """Set a value, which the other ranks get in the exchange."""
        if self._is_requested.is_set():
            raise Aborted(f"{key!r} was set after the ranks had exchanged their values")
        self._own[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value that any rank has set."""
        self._await()
        if key not in self._all:
            raise Aborted(f"no rank has set {key!r}")
        return self._all[key]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""
        self._await()
        return all(key in self._all for key in keys)

    def serve(self) -> None:
        """Exchange the values of all ranks, as soon as the library has read a value."""
        if not self._is_requested.is_set() or self._is_exchanged.is_set():
            return
        try:
            own = {key: base64.b64encode(value).decode() for key, value in self._own.items()}
            for rank, text in enumerate(self._exchange(json.dumps(own))):
                self._all |= _read_values(rank, text)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._is_exchanged.set()

    def _await(self) -> None:
        self._is_requested.set()
        if not self._is_exchanged.wait(_SERVED_S) or self._failure is not None:
            raise Aborted(f"the ranks did not exchange their addresses: {self._failure}")


def _read_values(rank: int, text: str) -> dict[str, bytes]:
    """Return the values that a rank has set. The transport of the text authenticates the rank and bounds the length."""
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it must be an object")
        return {key: base64.b64decode(value, validate=True) for key, value in values.items()}
    except (ValueError, TypeError, RecursionError) as error:
        raise Aborted(f"the addresses of rank {rank} are malformed: {error}") from error
