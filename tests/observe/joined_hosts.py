"""Agents of several hosts on one machine: commands that join a run, and connections of agents."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hocket.boot.connecting import Place, connect_once
from hocket.boot.sealed import RankEnd
from hocket.boot.secret import find_secret
from hocket.boot.sockets import resolve
from hocket.observe.host_collector import HostCollector, parse_address
from hocket.observe.sealed_stream import PURPOSE, VERSION, SealedStream

from ..load import scaled


def memory_beside(tmp_path: Path) -> Path:
    for name in ("run", "memory"):
        (tmp_path / name).mkdir(exist_ok=True)
    return tmp_path / "memory"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def waits_for(*paths: Path) -> str:
    return f"import os, time\nwhile not all(map(os.path.exists, {[str(path) for path in paths]})): time.sleep(0.02)\n"


def leaves(path: Path) -> str:
    return f"open({str(path)!r}, 'w').close()\n"


def joined(port: int, *command: str, variables: dict[str, str] | None = None) -> list[str]:
    return [sys.executable, "-m", "hocket.cli", "observe", "run", "--join", f"127.0.0.1:{port}", "--", *command]


@contextmanager
def started(command: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def agent_of(collector: HostCollector) -> SealedStream:
    host, port = parse_address(collector.name, needs_port=True)
    connection, end = connect_once(resolve(host, 5.0)[0], port, Place(find_secret(), PURPOSE, 1, 0))
    assert isinstance(end, RankEnd)
    return SealedStream(connection, end)


def join(stream: SealedStream, host: str, ident: str = "an agent") -> dict[str, object]:
    """Say who an agent is; return what the collector answers, and what it has of the agent's files."""
    stream.send_object("join", {"host": host, "version": VERSION, "agent": ident}, 5.0)
    kind, content = stream.receive_object(10.0)
    assert kind == "welcome", content
    list(stream.receive_content(content["known_nbytes"], 10.0))
    return dict(content)


def receive_all(stream: SealedStream, until: str = "") -> bool:
    """Take what the collector asks for, until it says something else.

    Raises:
        ConnectionError: it has closed the connection.
    """
    while stream.receive_object(scaled(10))[0] != until:
        pass
    return True
