"""The agent of any host but the first: compares its clock with that of the first, and sends it what it has saved."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from hocket.boot.connecting import Place, connect_once
from hocket.boot.sealed import ProtocolError, RankEnd, Role
from hocket.boot.secret import find_secret
from hocket.boot.sockets import Interface, resolve
from hocket.clock import ClockOrigin, ClockReading, ask_clock, clock_origin
from hocket.errors import CommTimeout, RecorderError
from hocket.observe.host_collector import clock_key
from hocket.observe.host_growth import GrowthSender, send_rest
from hocket.observe.saved import follow
from hocket.observe.sealed_stream import PURPOSE, VERSION, SealedStream

_CONNECT_S = 30.0
_ALIVE_S = 2.0
_SEND_S = 30.0
_READINGS = 32
_CLOCK_S = 2.0
_FIRST_INTERVAL_S = 1.0
_LAST_INTERVAL_S = 10.0
_RETRY_S = 0.1
_LOOK_S = 0.2
_AGAIN_S, _LAST_TRY_S = 1.0, 2.0
_MOST_ASKED_NBYTES = _MOST_KNOWN_NBYTES = 64 << 20


class HostJoiner:
    """A connection to the first host of a recorded run.

    Args:
        address: host and port where the first host listens.
        timeout: seconds to wait until it listens.

    Attributes:
        readings: comparisons of this host's clock with that of the first host; empty if it is the same clock.
        look: returns what the processes of this host do, for the first host, while somebody looks there.
        growth: sends what is recorded while the run goes on.

    Raises:
        RecorderError: nobody listens there, it has another secret, or another version of hocket; names the address.
    """

    def __init__(self, address: tuple[str, int], timeout: float = _CONNECT_S) -> None:
        self._address = address
        self._name = f"{address[0]}:{address[1]}"
        self._secret = find_secret()
        self.readings: list[ClockReading] = []
        self.look: Callable[[], object] | None = None
        self.growth: GrowthSender | None = None
        self._stops = threading.Event()
        self._error: BaseException | None = None
        self._ident = secrets.token_hex(16)
        self._stream = self._connect(timeout)
        try:
            welcome = self._enter(self._stream)
            origin = ClockOrigin(str(welcome.get("boot_id")), float(welcome.get("offset_s", 0.0)))
            self._clock_port = int(welcome["clock_port"])
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
            send_rest(self._stream, folder, self.growth.sent if self.growth is not None else {})
            self._stream.send_object("end", None, _SEND_S)
            kind = "look"
            while kind in ("look", "grow"):  # asked for before the end
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
        if self._thread.is_alive():
            self._error = TimeoutError("the first host does not read what is sent to it")
        elif isinstance(self._error, OSError):
            self._come_again(_LAST_TRY_S)
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

    def _enter(self, stream: SealedStream) -> dict[str, Any]:
        """Say who this is; return what the first host answers."""
        stream.send_object("join", {"host": socket.gethostname(), "version": VERSION, "agent": self._ident}, _SEND_S)
        try:
            kind, content = stream.receive_object(_SEND_S)
        except ConnectionError as error:
            raise ConnectionError(f"{error}: the first host may run another version of hocket") from None
        if kind == "refused":
            raise ProtocolError(str(content)[:1000])
        if kind != "welcome" or not isinstance(content, dict):
            raise ProtocolError("it does not answer as the first host of a recorded run")
        port, nbytes = content.get("clock_port"), content.get("known_nbytes")
        if type(port) is not int or type(nbytes) is not int or not 0 <= nbytes <= _MOST_KNOWN_NBYTES:
            raise ProtocolError("it does not answer as the first host of a recorded run")
        try:
            known = json.loads(b"".join(stream.receive_content(nbytes, _SEND_S)))
        except (ValueError, RecursionError):
            known = None
        if not isinstance(known, dict):
            raise ProtocolError("it does not say what it has of this host")
        if self.growth is not None:
            self.growth.continue_from(known)
        return content

    def _come_again(self, timeout: float) -> None:
        """Join once more after the connection was broken; without success the error stays."""
        try:
            stream = self._connect(timeout)
        except RecorderError:
            return
        try:
            self._enter(stream)
        except (OSError, ProtocolError):
            stream.close()
        else:
            self._stream.close()
            self._stream, self._error = stream, None

    def _stay(self) -> None:
        """Until the run ends: answer the first host, and join again where the connection was broken."""
        while not self._stops.is_set():
            try:
                self._serve()
            except OSError as error:
                self._error = error
            except ProtocolError as error:
                self._error = error
                return
            while self._error is not None and not self._stops.wait(_AGAIN_S):
                self._come_again(_AGAIN_S)

    def _serve(self) -> None:
        """Show that this agent runs, compare the clocks, and send what is asked for."""
        interval_s, compared_s, shown_s = _FIRST_INTERVAL_S, monotonic(), monotonic()
        while not self._stops.is_set():
            self._answer()
            if monotonic() - shown_s >= _ALIVE_S:
                self._stream.send_object("alive", None, _SEND_S)
                shown_s = monotonic()
            if not self._has_same_clock and monotonic() - compared_s >= interval_s:
                self._compare(_CLOCK_S)
                compared_s = monotonic()
                interval_s = min(interval_s * 1.2, _LAST_INTERVAL_S)

    def _answer(self) -> None:
        """Answer what the first host asks for, if it does so soon."""
        try:
            kind, content = self._stream.receive_object(_LOOK_S)
        except TimeoutError:
            return
        if kind == "look":
            if self.look is not None:
                self._stream.send_object("view", self.look(), _SEND_S)
        elif kind == "grow" and isinstance(content, dict):
            nbytes = content.get("most_nbytes")
            if type(nbytes) is not int or not 0 < nbytes <= _MOST_ASKED_NBYTES:
                raise ProtocolError(f"it asks for {nbytes!r:.40} bytes")
            if type(most_files := content.get("most_files")) is not int or most_files < 0:
                raise ProtocolError(f"it asks for {most_files!r:.40} files")
            if self.growth is None:
                self._stream.send_object("grown", False, _SEND_S)
                return
            if content.get("is_followed") is True:
                with suppress(OSError):  # a full disk is told at the end
                    follow(self.growth.folder)
            self.growth.answer(self._stream, nbytes, most_files)
        else:
            raise ProtocolError(f"unknown message {kind[:40]!r}")

    def _compare(self, timeout: float) -> None:
        try:
            clock = (self._address[0], self._clock_port)
            self.readings.append(ask_clock(clock, clock_key(self._secret), num_readings=_READINGS, timeout=timeout))
        except CommTimeout:
            if not self.readings:
                raise  # a lost burst later on only widens the bound
