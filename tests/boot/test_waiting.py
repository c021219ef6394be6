"""The ranks that a start waits for are named during the wait, not only at its end."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.boot import job_state, joining
from hocket.boot.connecting import Place
from hocket.boot.job_state import NAMED_AFTER_S, JobState
from hocket.boot.sealed import Role
from hocket.boot.secret import Secret
from hocket.errors import CommTimeout

from ..naming import assert_names, raises

pytestmark = pytest.mark.timeout(60)


def _hello(rank: int) -> dict[str, Any]:
    return {"size": 3, "version": "1", "local_rank": rank, "local_size": 3, "host": "a", "place": f"a, pid {rank}"}


def test_rank_0_hears_once_who_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(job_state, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sent: list[tuple[int, str, object]] = []
    state = JobState(3, 600.0, lambda rank, kind, content: sent.append((rank, kind, content)))
    assert state.welcome(0, _hello(0), "a", "a") is None and state.welcome(2, _hello(2), "a", "a") is None
    assert state.next_timeout_s() == NAMED_AFTER_S
    state.handle_timeouts()
    assert sent == []
    now[0] += NAMED_AFTER_S
    state.handle_timeouts()
    assert sent == [(0, "awaited", [1])]
    assert state.next_timeout_s() == 600.0 - NAMED_AFTER_S
    now[0] += 100
    state.handle_timeouts()
    assert len(sent) == 1


def test_a_rank_that_finds_no_server_says_where_it_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joining, "NAMED_AFTER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = Place(Secret(b"k" * 32, "this test"), "j", 2, 1)
    with raises(CommTimeout, names=("rank 1", "127.0.0.1", str(port)), ranks=(0,)):
        joining.find_server("127.0.0.1", [port], place, time.monotonic() + 1.5)
    (line,) = capsys.readouterr().err.splitlines()
    assert_names(line, "rank 1", "rank 0", "127.0.0.1", str(port), "0.2")


def test_of_mpi_the_launcher_says_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(joining, "NAMED_AFTER_S", 0.0)
    place = Place(Secret(b"k" * 32, "this test"), "j", 2, 1, Role.PMI)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(CommTimeout):
        joining.find_server("127.0.0.1", [port], place, time.monotonic() + 0.3)
    assert capsys.readouterr().err == ""
