"""Clocks over the network: right ones, and strangers on the port."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time

import pytest

from hocket.clock import ClockLine, ClockOrigin, ClockServer, ask_clock, clock_origin
from hocket.errors import CommTimeout, InvalidArgument

from ..load import scaled
from ..naming import raises

pytestmark = pytest.mark.timeout(60)
KEY = b"a key of sixteen bytes"


def test_a_clock_that_is_ahead_and_drifts() -> None:
    begin_ns = time.monotonic_ns()

    def theirs() -> int:
        now_ns = time.monotonic_ns()
        return now_ns + 123_000_000 + round((now_ns - begin_ns) * 37e-6)

    line = ClockLine()
    with ClockServer(KEY, clock_ns=theirs) as server:
        for _ in range(8):
            line.add(ask_clock(server.address, KEY, num_readings=8, timeout=scaled(5)))
    at_ns = time.monotonic_ns()
    expected_ns = 123_000_000 + (at_ns - begin_ns) * 37e-6
    assert abs(line.ahead(at_ns) - expected_ns) <= line.error(at_ns)


def test_strangers_get_no_answer_and_do_no_harm() -> None:
    with ClockServer(KEY) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(server.address)
        stranger.settimeout(0.3)
        for message in (b"", b"x", b"HCKCLK1\0", os.urandom(64), b"HCKCLK1\0" + bytes(56), bytes(1400)):
            stranger.send(message)
        with pytest.raises(TimeoutError):
            stranger.recv(100)
        with raises(CommTimeout, names=(str(server.address[1]),)):
            ask_clock(server.address, b"another key, long enough", timeout=0.5)
        reading = ask_clock(server.address, KEY, timeout=scaled(5))
        assert abs(reading.ahead) <= reading.error


def test_answers_of_strangers_are_not_believed() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as liar:
        liar.bind(("127.0.0.1", 0))
        liar.settimeout(scaled(5))

        def lie() -> None:
            for _ in range(3):
                question, asker = liar.recvfrom(100)
                for answer in (question, question[:32] + os.urandom(32), os.urandom(64), b""):
                    liar.sendto(answer, asker)

        thread = threading.Thread(target=lie)
        thread.start()
        with raises(CommTimeout, names=(str(liar.getsockname()[1]),)):
            ask_clock(liar.getsockname(), KEY, num_readings=3, timeout=1.0)
        thread.join()


def test_nobody_listens() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = taken.getsockname()
    began_s = time.monotonic()
    with raises(CommTimeout, names=(str(address[1]),)):
        ask_clock(address, KEY, timeout=0.5)
    assert time.monotonic() - began_s < scaled(5)


def test_what_is_refused() -> None:
    with raises(InvalidArgument, names=("16", "5")):
        ClockServer(b"short")
    for number in (0, 1025):
        with raises(InvalidArgument, names=("num_readings", str(number))):
            ask_clock(("127.0.0.1", 1), KEY, num_readings=number)
    with ClockServer(KEY) as server, pytest.raises(OSError, match=str(errno.EADDRINUSE)):
        ClockServer(KEY, server.address)


def test_origins() -> None:
    here = clock_origin()
    assert here.is_same(clock_origin()) and here.offset_s == 0.0
    assert not here.is_same(ClockOrigin(here.boot_id, 1000.0))
    assert not ClockOrigin("", 0.0).is_same(ClockOrigin("", 0.0))
