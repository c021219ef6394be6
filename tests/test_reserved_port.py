"""Ports reserved for a later server."""

from __future__ import annotations

import errno
import gc
import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from hocket.reserved_port import ReservedPort


@pytest.mark.parametrize("address", ["127.0.0.1", "", "127.1.2.3", *["::1"] * socket.has_dualstack_ipv6()])
def test_nobody_else_can_take_it(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    in_use = os.strerror(errno.EADDRINUSE)
    with ReservedPort() as port, socket.socket(family) as other, pytest.raises(OSError, match=in_use):
        other.bind((address, port.number))


@pytest.mark.parametrize("use_libuv", [True, False])
def test_the_store_of_torch_listens_at_it(use_libuv: bool) -> None:
    with ReservedPort() as port:
        store = TCPStore("127.0.0.1", port.number, 1, True, timedelta(seconds=10), use_libuv=use_libuv)
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_a_server_of_another_process_listens_at_it() -> None:
    with ReservedPort() as port:
        server = f"import socket; socket.create_server(('', {port.number})).close()"
        subprocess.run([sys.executable, "-c", server], check=True, timeout=30)


def test_what_others_have_is_not_given() -> None:
    # bound to one address only: a probe of another address would succeed
    taken = [socket.create_server((f"127.0.0.{2 + number % 200}", 0)) for number in range(400)]
    try:
        ports = {each.getsockname()[1] for each in taken}
        reserved = [ReservedPort() for _ in range(400)]
        numbers = {each.number for each in reserved}
        assert len(numbers) == 400 and not numbers & ports
        for each in reserved:
            each.close()
    finally:
        for each in taken:
            each.close()


def test_it_is_given_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ReservedPort() as port:
        pass
    socket.create_server(("127.0.0.1", port.number)).close()
    port.close()
    forgotten = ReservedPort()
    number = forgotten.number
    del forgotten
    gc.collect()
    socket.create_server(("127.0.0.1", number)).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPv6 is in the kernel but switched off: sockets can be created but not bound."""

    class NoIpv6(socket.socket):
        def bind(self, address: object) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            super().bind(address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "socket", NoIpv6)
    with ReservedPort() as port:
        assert 0 < port.number < 1 << 16
