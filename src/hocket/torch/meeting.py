"""The ranks of a process group find each other through torch's store.

torch's store has no authentication. So the size and type of its values are checked before use, and the values determine
only where a rank connects to. The connection itself authenticates both sides (SO_PEERCRED on one host,
`hocket.boot.sealed` between hosts).
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import Store

from hocket.boot.joining import MOST_HOST, StartedServer, host_identity, start_server
from hocket.errors import BootstrapMismatch, CommTimeout

_POLL_S = 0.002
_READ_S = 5.0
_MOST_TOKEN = 64  # characters of the tokens and names that ranks make for one attempt
_MOST_ERROR = 4096
_MOST_ESCAPED = 12  # most bytes of a character in JSON


@dataclass(frozen=True)
class Meeting:
    """The place where the ranks of a process group connect.

    Args:
        name: a name that is used once.
        hosts: identity of each rank's host, by rank.
        server: address and port of the control server with several hosts, else None.
        started: the control server, if this rank started it; keep it until this rank has connected.
    """

    name: str
    hosts: list[str]
    server: tuple[str, int] | None
    started: StartedServer | None = None


def arrange_meeting(
    store: Store, rank: int, size: int, timeout_s: float, *, is_at_master: bool, check: Callable[[Sequence[str]], None]
) -> Meeting:
    """Agree on a meeting through torch's store; called by all ranks.

    The store of an elastic agent outlives the ranks, and may have values of earlier ranks. So every rank writes a new
    random token, and uses only values that were written for this token.

    Protocol, with keys below "hocket/": rank r > 0 writes its token and host to host/r, and waits for name/<token>.
    Rank 0 writes the name of the meeting there; rank r confirms with heard/<name>/r. When all have confirmed, rank 0
    writes the meeting, or its error, to meeting/<name>.

    Args:
        store, rank, size, timeout_s: of the group.
        is_at_master: whether rank 0 is on the host that MASTER_ADDR names.
        check: called by rank 0 with the identities of the hosts; if it raises, the start fails on all ranks.

    Raises:
        CommTimeout: some rank never arrived.
        BootstrapMismatch: rank 0 failed; the message has its error.
    """
    token = secrets.token_hex(16)
    if rank == 0:
        name = f"hocket-{token}"
        hosts = [host_identity(), *(_send_name(store, name, peer, timeout_s) for peer in range(1, size))]
        try:
            check(hosts)
            started = start_server(size, name, timeout_s, is_at_master) if len(set(hosts)) > 1 else None
        except Exception as error:
            store.set(f"hocket/meeting/{name}", json.dumps({"error": str(error)[:_MOST_ERROR]}))
            _wait_until_read(store, name, size)
            raise
        server = None if started is None else (started.address, started.port)
        store.set(f"hocket/meeting/{name}", json.dumps({"hosts": hosts, "server": server}))
        return Meeting(name, hosts, server, started)
    patience = timedelta(seconds=timeout_s)
    store.set(f"hocket/host/{rank}", f"{token} {host_identity()}")
    _wait_for(store, f"hocket/name/{token}", patience, rank, 0, timeout_s)
    name = _read(store, f"hocket/name/{token}", _MOST_TOKEN)
    store.set(f"hocket/heard/{name}/{rank}", "")
    _wait_for(store, f"hocket/meeting/{name}", patience, rank, 0, timeout_s)
    most_nbytes = _MOST_ESCAPED * (size * MOST_HOST + _MOST_ERROR)
    text = _read(store, f"hocket/meeting/{name}", most_nbytes)
    store.set(f"hocket/read/{name}/{rank}", "")
    return _read_meeting(name, text, size)


def _wait_until_read(store: Store, name: str, size: int) -> None:
    """Wait until the other ranks have read the error: the store often ends with the process of rank 0."""
    deadline = time.monotonic() + _READ_S
    unread = [f"hocket/read/{name}/{rank}" for rank in range(1, size)]
    with contextlib.suppress(RuntimeError):  # the store has ended; the caller raises the more important error
        while not store.check(unread) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _read(store: Store, key: str, most_nbytes: int) -> str:
    """Return a printable text from the store.

    Raises:
        BootstrapMismatch: the value is longer than `most_nbytes`, or not printable UTF-8.
    """
    data = store.get(key)
    if len(data) > most_nbytes:
        raise BootstrapMismatch(f"{key} in torch's store must have at most {most_nbytes} bytes, not {len(data)}")
    text = data.decode(errors="replace")
    if not text.isprintable() or "\N{REPLACEMENT CHARACTER}" in text:
        raise BootstrapMismatch(f"{key} in torch's store must be printable text, not {data[:80]!r}")
    return text


def _read_meeting(name: str, text: str, size: int) -> Meeting:
    """Parse the meeting that rank 0 wrote to the store."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BootstrapMismatch(f"torch's store must hold a meeting of {size} ranks: {error}") from error
    match content:
        case {"error": str(why)}:
            raise BootstrapMismatch(f"rank 0 could not start the group: {why}")
        case {"hosts": [*hosts], "server": None} if _are_hosts(hosts, size):
            return Meeting(name, hosts, None)
        case {"hosts": [*hosts], "server": [str(address), int(port)]} if _are_hosts(hosts, size) and _is_port(port):
            return Meeting(name, hosts, (address, port))
    raise BootstrapMismatch(f"torch's store must hold a meeting of {size} ranks, not {text[:80]}")


def _are_hosts(hosts: Sequence[object], size: int) -> bool:
    return len(hosts) == size and all(isinstance(host, str) and len(host) <= MOST_HOST for host in hosts)


def _is_port(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 16


def _send_name(store: Store, name: str, peer: int, timeout_s: float) -> str:
    """Write the name for a rank until the rank confirms it; return the rank's host."""
    deadline = time.monotonic() + timeout_s
    answered = ""
    while True:
        _wait_for(
            store, f"hocket/host/{peer}", timedelta(seconds=max(0.001, deadline - time.monotonic())), 0, peer, timeout_s
        )
        token, _, host = _read(store, f"hocket/host/{peer}", _MOST_TOKEN + _MOST_ESCAPED * MOST_HOST).partition(" ")
        if token != answered:  # the first token may be of an earlier attempt
            store.set(f"hocket/name/{token}", name)
            answered = token
        if store.check([f"hocket/heard/{name}/{peer}"]):
            return host
        if time.monotonic() > deadline:
            raise CommTimeout(f"rank 0 waited {timeout_s:g} s at start-up: rank {peer} never arrived", (peer,))
        time.sleep(_POLL_S)


def _wait_for(store: Store, key: str, patience: timedelta, rank: int, peer: int, timeout_s: float) -> None:
    try:
        store.wait([key], patience)
    except RuntimeError as error:  # torch's DistStoreError, which is not a public name
        raise CommTimeout(
            f"rank {rank} waited {timeout_s:g} s at start-up: rank {peer} never arrived", (peer,)
        ) from error
