"""The agent of any host but the first: compares its clock with that of the first, and sends it what it has saved."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from hocket.boot.connecting import Place, connect_once
from hocket.boot.sealed import ProtocolError, RankEnd, Role
from hocket.boot.secret import find_secret
from hocket.boot.sockets import Interface, resolve
from hocket.clock import ClockOrigin, ClockReading, ask_clock, clock_origin
from hocket.errors import CommTimeout, RecorderError
from hocket.observe.host_collector import clock_key
from hocket.observe.sealed_stream import CHUNK_NBYTES, PURPOSE, SealedStream

_CONNECT_S = 30.0
_ALIVE_S = 2.0
_SEND_S = 30.0
_READINGS = 32
_CLOCK_S = 2.0
_FIRST_INTERVAL_S = 1.0
_LAST_INTERVAL_S = 10.0
_RETRY_S = 0.1
_LOOK_S = 0.2


class HostJoiner:
    """A connection to the first host of a recorded run.

    Args:
        address: host and port where the first host listens.
        timeout: seconds to wait until it listens.

    Attributes:
        readings: comparisons of this host's clock with that of the first host; empty if it is the same clock.
        look: returns what the processes of this host do, for the first host, while somebody looks there.

    Raises:
        RecorderError: nobody listens there, or it has another secret; names the address.
    """

    def __init__(self, address: tuple[str, int], timeout: float = _CONNECT_S) -> None:
        self._address = address
        self._name = f"{address[0]}:{address[1]}"
        self._secret = find_secret()
        self.readings: list[ClockReading] = []
        self.look: Callable[[], object] | None = None
        self._stops = threading.Event()
        self._error: BaseException | None = None
        self._stream = self._connect(timeout)
        try:
            self._stream.send_object("join", socket.gethostname(), _SEND_S)
            kind, content = self._stream.receive_object(_SEND_S)
            if kind != "welcome" or not isinstance(content, dict) or type(content.get("clock_port")) is not int:
                raise ProtocolError("it does not answer as the first host of a recorded run")
            origin = ClockOrigin(str(content.get("boot_id")), float(content.get("offset_s", 0.0)))
            self._clock_port = int(content["clock_port"])
            self._has_same_clock = clock_origin().is_same(origin)
            if not self._has_same_clock:
                self._compare(_CONNECT_S)
        except (OSError, ProtocolError, ValueError, TypeError, CommTimeout) as error:
            self._stream.close()
            raise RecorderError(f"{self._name}: {error}") from None
        self._thread = threading.Thread(target=self._stay, name="hocket-joined", daemon=True)
        self._thread.start()

    def send_run(self, folder: Path) -> None:
        """Send all files of a folder, and close the connection; after `stop_comparing`, whose readings are in them.

        Raises:
            RecorderError: the first host is gone; what was recorded is in `folder`.
        """
        try:
            if self._error:
                raise self._error
            for path in sorted(folder.iterdir()):
                with path.open("rb") as file:
                    left = os.fstat(file.fileno()).st_size
                    self._stream.send_object("file", [path.name, left], _SEND_S)
                    while left > 0:
                        data = file.read(min(CHUNK_NBYTES, left))
                        if not data:
                            raise OSError(f"{path} became shorter")
                        self._stream.send(data, _SEND_S)
                        left -= len(data)
            self._stream.send_object("end", None, _SEND_S)
            kind = "look"
            while kind == "look":  # asked for before the end
                kind, _ = self._stream.receive_object(_SEND_S)
            if kind != "kept":
                raise ProtocolError(f"unknown message {kind[:40]!r}")
        except (OSError, ProtocolError, CommTimeout) as error:
            raise RecorderError(f"{self._name}: {error}; what this host recorded is in {folder}") from None
        finally:
            self.close()

    def stop_comparing(self) -> None:
        """Compare the clocks for the last time."""
        self._stops.set()
        self._thread.join(2 * _SEND_S)
        if not self._has_same_clock and self._error is None:
            try:
                self._compare(_CLOCK_S)
            except (CommTimeout, OSError) as error:
                self._error = error

    def close(self) -> None:
        """Leave the run."""
        self._stops.set()
        self._stream.close()

    def _connect(self, timeout: float) -> SealedStream:
        deadline_s = monotonic() + timeout
        try:
            interfaces = resolve(self._address[0], timeout)
        except OSError as error:
            raise RecorderError(f"{self._name}: {error}") from None
        certificate = os.environ.get("HOCKET_TLS_CERT") or None
        place = Place(self._secret, PURPOSE, size=1, rank=0, role=Role.CONTROL, certificate=certificate)
        while True:
            try:
                connection, end = self._try(interfaces, place, deadline_s)
                return SealedStream(connection, end)
            except ProtocolError as error:
                raise RecorderError(f"{self._name}: {error}") from None
            except OSError as error:
                if monotonic() + _RETRY_S >= deadline_s:
                    raise RecorderError(
                        f"no `hocket observe run --listen` answers at {self._name} within {timeout:g} s: {error}"
                    ) from None
                threading.Event().wait(_RETRY_S)

    def _try(self, interfaces: list[Interface], place: Place, deadline_s: float) -> tuple[socket.socket, RankEnd]:
        for interface in interfaces[:-1]:
            try:
                return connect_once(interface, self._address[1], place, deadline_s)
            except OSError:
                continue  # the next address of the name
        return connect_once(interfaces[-1], self._address[1], place, deadline_s)

    def _stay(self) -> None:
        """Until the run ends: show that this agent runs, compare the clocks, and say what the processes do."""
        interval_s, compared_s, shown_s = _FIRST_INTERVAL_S, monotonic(), monotonic()
        try:
            while not self._stops.is_set():
                if self._is_asked() and self.look is not None:
                    self._stream.send_object("view", self.look(), _SEND_S)
                if monotonic() - shown_s >= _ALIVE_S:
                    self._stream.send_object("alive", None, _SEND_S)
                    shown_s = monotonic()
                if not self._has_same_clock and monotonic() - compared_s >= interval_s:
                    self._compare(_CLOCK_S)
                    compared_s = monotonic()
                    interval_s = min(interval_s * 1.2, _LAST_INTERVAL_S)
        except (OSError, ProtocolError) as error:
            self._error = error

    def _is_asked(self) -> bool:
        try:
            kind, _ = self._stream.receive_object(_LOOK_S)
        except TimeoutError:
            return False
        if kind != "look":
            raise ProtocolError(f"unknown message {kind[:40]!r}")
        return True

    def _compare(self, timeout: float) -> None:
        try:
            clock = (self._address[0], self._clock_port)
            self.readings.append(ask_clock(clock, clock_key(self._secret), num_readings=_READINGS, timeout=timeout))
        except CommTimeout:
            if not self.readings:
                raise  # a lost burst later on only widens the bound
