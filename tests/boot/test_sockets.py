"""The listening addresses of a job's server, and name resolution."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from hocket.boot import sockets
from hocket.boot.sockets import Interface, listen, resolve
from hocket.errors import BootstrapMismatch

from ..naming import raises

pytestmark = pytest.mark.timeout(60)
NOT_OURS = "192.0.2.7"  # an address reserved for documentation (RFC 5737)


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [(socket.AF_INET6 if ":" in each else socket.AF_INET, each) for each in addresses]
    answer = [
        (family, socket.SOCK_STREAM, 6, "", (each, 0, 0, 0) if family == socket.AF_INET6 else (each, 0))
        for family, each in found
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)


def hosts(address: str) -> list[str]:
    listeners = listen(address, [0])
    try:
        assert len({each.getsockname()[1] for each in listeners}) == 1
        return [each.getsockname()[0] for each in listeners]
    finally:
        for each in listeners:
            each.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_the_loopback_stays_the_loopback(address: str) -> None:
    assert set(hosts(address)) <= {"127.0.0.1", "::1"}


def test_an_address_of_localhost_that_is_not_there_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers without IPv6; on all interfaces strangers could connect."""
    resolves_to(monkeypatch, NOT_OURS, "127.0.0.1")
    monkeypatch.setattr(sockets, "_is_loopback", lambda address: True)
    assert hosts("localhost") == ["127.0.0.1"]


def test_a_loopback_that_is_not_there_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, NOT_OURS)
    monkeypatch.setattr(sockets, "_is_loopback", lambda address: True)
    with raises(BootstrapMismatch, names=("localhost",)):
        listen("localhost", [0])


@pytest.mark.parametrize(
    ("name", "addresses"),
    [("node0", ["127.0.1.1"]), ("gateway", [NOT_OURS]), ("gateway", [NOT_OURS, "2001:db8::7"])],
    ids=["own name is of the loopback", "address of a gateway", "addresses of a gateway"],
)
def test_names_that_lead_here_from_elsewhere(monkeypatch: pytest.MonkeyPatch, name: str, addresses: list[str]) -> None:
    resolves_to(monkeypatch, *addresses)
    assert set(hosts(name)) <= {"::", "0.0.0.0"}


def test_a_scope_is_kept() -> None:
    interface = Interface(socket.AF_INET6, ("fe80::1", 0, 3))
    assert interface.at(99) == ("fe80::1", 99, 0, 3) and not interface.is_loopback


def test_a_port_that_is_given_back_soon_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with raises(BootstrapMismatch, names=(str(port), "HOCKET_CONTROL")):
            listen("127.0.0.1", [port], 0.05)
    for each in listen("127.0.0.1", [port], 5.0):
        each.close()


def test_names_are_not_waited_for_longer_than_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        time.sleep(5)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", never)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        resolve("slow", 0.05)
    assert time.monotonic() - began_s < 4


@pytest.mark.parametrize("name", ["no.such.host.invalid", "a" * 300, ""])
def test_names_that_are_none(name: str) -> None:
    with raises(OSError, names=(repr(name),)):
        resolve(name, 30)
