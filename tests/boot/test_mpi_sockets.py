"""The launcher's ends of the sockets to MPI libraries, with libraries that send any messages."""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hocket.boot import open_mpi
from hocket.boot.job_result import EXIT_CANNOT_START, EXIT_TIMED_OUT
from hocket.boot.mpi_limits import Limits
from hocket.boot.mpi_sockets import MpiSockets
from hocket.boot.nodes import Nodes
from hocket.boot.open_mpi import LIBRARY, REQUEST, REQUEST_AND_START
from hocket.boot.watcher import Watcher

from ..naming import assert_names

pytestmark = pytest.mark.timeout(60)
INIT = b"cmd=init pmi_version=1 pmi_subversion=1\n"
ANSWER_S = 20.0


class Launcher:
    """The sockets of two ranks, and the launcher's side of them."""

    def __init__(self, grace_s: float = 0.0, timeout_s: float = 600.0, named_after_s: float = 300.0) -> None:
        self.watcher = Watcher()
        self.mpi = MpiSockets(Nodes(), 2, Limits(grace_s, timeout_s, named_after_s))
        self.mpi.watch(self.watcher)
        self.reports: list[str] = []
        self.libraries = [self.mpi.open(rank)[0] for rank in range(2)]
        for each in self.libraries:
            each.settimeout(ANSWER_S)

    def serve(self) -> None:
        self.watcher.wait(0.05)

    def send(self, rank: int, *lines: bytes) -> None:
        for line in lines:
            self.libraries[rank].sendall(line)
            self.serve()

    def received(self, rank: int) -> bytes:
        return self.libraries[rank].recv(1 << 16)

    def close(self) -> None:
        self.mpi.close()
        self.watcher.close()
        for each in self.libraries:
            each.close()


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.close()


def test_barrier(launcher: Launcher) -> None:
    launcher.send(0, INIT, b"cmd=barrier_in\n")
    assert launcher.received(0).startswith(b"cmd=response_to_init")
    launcher.send(1, INIT, b"cmd=barrier_in\n")
    assert launcher.received(0) == b"cmd=barrier_out rc=0\n"
    assert launcher.mpi.check(launcher.reports.append) is None


def test_nothing_is_due_before_a_library_speaks(launcher: Launcher) -> None:
    assert launcher.mpi.next_check_s() is None
    launcher.mpi.note_end(0, 0)
    assert launcher.mpi.next_check_s() is None
    assert launcher.mpi.check(launcher.reports.append) is None


def test_a_wait_in_finalize_has_no_limit() -> None:
    with closing(Launcher(timeout_s=0.0, named_after_s=0.0)) as launcher:
        for rank in range(2):
            launcher.send(rank, INIT, b"cmd=barrier_in\n")
        launcher.send(0, b"cmd=barrier_in\n")
        assert launcher.mpi.check(launcher.reports.append) is None
        assert launcher.mpi.next_check_s() is None
        assert launcher.reports == []
        launcher.mpi.note_end(1, 0)
        end = launcher.mpi.check(launcher.reports.append)
        assert end is not None and end.exit_code == EXIT_CANNOT_START
        assert_names(end.reason, "rank 1", "MPI_Finalize", "rank 0")


def test_a_failure_is_heard_where_the_library_has_spoken_on() -> None:
    with closing(Launcher(timeout_s=0.0, named_after_s=0.0)) as launcher:
        for rank in range(2):
            launcher.send(rank, INIT, b"cmd=barrier_in\n")
        launcher.send(1, b"cmd=hocket_failed code=3\ncmd=barrier_in\n")
        assert launcher.mpi.take_failed() == {1: 3}
        assert launcher.mpi.take_failed() == {}
        end = launcher.mpi._end(launcher.mpi._server)
        assert end is not None and list(end.inside) == [1]


def test_a_wait_in_init_is_named_once_and_ends() -> None:
    with closing(Launcher(timeout_s=0.2, named_after_s=0.0)) as launcher:
        launcher.send(1, INIT)
        assert launcher.mpi.check(launcher.reports.append) is None
        assert launcher.mpi.check(launcher.reports.append) is None
        assert len(launcher.reports) == 1
        assert_names(launcher.reports[0], "rank 1", "MPI_Init", "rank 0")
        due_s = launcher.mpi.next_check_s()
        assert due_s is not None and 0 <= due_s <= 0.2
        time.sleep(due_s)
        end = launcher.mpi.check(launcher.reports.append)
        assert end is not None and end.exit_code == EXIT_TIMED_OUT


def test_a_rank_that_stops_within_init_is_named() -> None:
    with closing(Launcher(timeout_s=0.0)) as launcher:
        for rank in range(2):
            launcher.send(rank, INIT)
        launcher.send(0, b"cmd=barrier_in\n")
        end = launcher.mpi.check(launcher.reports.append)
        assert end is not None and end.exit_code == EXIT_TIMED_OUT
        assert_names(end.reason, "rank 0", "MPI_Init", "rank 1")


def test_open_mpi_that_does_not_start_yet_waits_for_nobody() -> None:
    with closing(Launcher(timeout_s=0.0)) as launcher:
        launcher.send(0, REQUEST)
        assert launcher.mpi.check(launcher.reports.append) is None
        launcher.send(1, REQUEST_AND_START)
        end = launcher.mpi.check(launcher.reports.append)
        assert end is not None
        assert_names(end.reason, "rank 1", "MPI_Init", "rank 0")


def test_a_rank_that_closes_its_socket_does_not_end_that_of_another(launcher: Launcher) -> None:
    for rank in range(2):
        launcher.send(rank, INIT)
        launcher.received(rank)
    launcher.send(0, b"cmd=barrier_in\n")
    launcher.libraries[0].close()
    launcher.libraries[1].sendall(b"cmd=barrier_in\n")  # before the end of the other was handled
    launcher.serve()
    launcher.send(1, b"cmd=get_appnum\n")
    assert launcher.received(1).endswith(b"cmd=appnum appnum=0\n")


@pytest.mark.parametrize(("code", "exit_code"), [(3, 3), (0, EXIT_CANNOT_START), (-1, 255), (256, EXIT_CANNOT_START)])
def test_abort(launcher: Launcher, code: int, exit_code: int) -> None:
    launcher.send(1, INIT, b"cmd=abort exitcode=%d message=some text\n" % code)
    assert launcher.mpi.next_check_s() == 0
    end = launcher.mpi.check(launcher.reports.append)
    assert end is not None and (end.exit_code, end.rank) == (exit_code, 1)


@pytest.mark.parametrize(
    "line", [b"cmd=abort exitcode=" + b"9" * 400, b"cmd=abort exitcode=x", b"xcmd=abort exitcode=3", b"cmd=abort"]
)
def test_what_is_no_abort(launcher: Launcher, line: bytes) -> None:
    launcher.send(1, INIT, line + b"\n")
    assert launcher.mpi.check(launcher.reports.append) is None


def test_a_spawn_of_many_lines_is_refused_in_one(launcher: Launcher) -> None:
    launcher.send(0, b"mcmd=spawn\nnprocs=1\nexecname=cmd=barrier_in\ncmd=barrier_in\n")
    launcher.send(0, b"argcnt=0\nendcmd\n")
    assert launcher.received(0) == b"cmd=spawn_result rc=-1 msg=not_supported\n"
    launcher.send(0, b"cmd=get_appnum\n")
    assert launcher.received(0) == b"cmd=appnum appnum=0\n"


def test_a_library_that_does_not_read_is_let_go(launcher: Launcher) -> None:
    question = b"cmd=get_maxes\n" * 1000
    launcher.libraries[0].settimeout(0.05)
    is_open = True
    for _ in range(10_000):
        try:
            launcher.libraries[0].sendall(question)
        except TimeoutError:
            pass
        except OSError:
            is_open = False
            break
        launcher.serve()
    assert not is_open
    launcher.send(1, b"cmd=get_appnum\n")  # other ranks are still served
    assert launcher.received(1) == b"cmd=appnum appnum=0\n"


@pytest.mark.parametrize("seed", range(20))
def test_garbage_ends_its_own_connection_at_most(launcher: Launcher, seed: int) -> None:
    words = [
        b"cmd=",
        b"mcmd=",
        b"put",
        b"get",
        b" key=",
        b" value=",
        b"\n",
        b"=",
        b"\0",
        b"\xff",
        b"barrier_in",
        b"9" * 99,
    ]
    random.seed(seed)
    for _ in range(200):
        try:
            launcher.libraries[0].send(b"".join(random.choices(words, k=random.randrange(40))))
        except OSError:
            break
        launcher.serve()
        launcher.libraries[0].setblocking(False)
        try:
            launcher.received(0)
        except OSError:
            pass
    launcher.send(1, b"cmd=get_appnum\n")
    assert launcher.received(1) == b"cmd=appnum appnum=0\n"


def wait_for_line(launcher: Launcher, rank: int) -> dict[str, object]:
    came = b""
    deadline_s = time.monotonic() + ANSWER_S
    launcher.libraries[rank].setblocking(False)
    while not came.endswith(b"\n"):
        assert time.monotonic() < deadline_s
        launcher.serve()
        try:
            came += launcher.received(rank)
        except BlockingIOError:
            continue
    answer: dict[str, object] = json.loads(came)
    return answer


def test_open_mpis_server_is_started_once(launcher: Launcher) -> None:
    for rank in range(2):
        launcher.send(rank, REQUEST)
    variables = [wait_for_line(launcher, rank)["variables"] for rank in range(2)]
    assert [each["PMIX_RANK"] for each in variables] == ["0", "1"]  # type: ignore[index]
    assert variables[0]["PMIX_NAMESPACE"] == variables[1]["PMIX_NAMESPACE"]  # type: ignore[index]
    folder = Path(variables[0]["PMIX_SERVER_TMPDIR"])  # type: ignore[index]
    assert folder.exists()
    launcher.close()
    assert not folder.exists()


@pytest.mark.parametrize("library", [None, "libnothing.so", "libc"])
def test_open_mpi_without_its_library(
    launcher: Launcher, library: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prefix = tmp_path
    if library is not None:
        (prefix / LIBRARY).parent.mkdir(parents=True)
        (prefix / LIBRARY).write_bytes(b"no library") if library != "libc" else (prefix / LIBRARY).symlink_to(
            next(Path("/lib").rglob("libc.so.6"))
        )
    monkeypatch.setattr(sys, "prefix", str(prefix))
    launcher.send(0, REQUEST)
    assert "error" in wait_for_line(launcher, 0)


def test_a_launcher_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = socket.socketpair()
    monkeypatch.setattr(open_mpi, "_ANSWER_S", 0.1)
    with mine, others:
        assert_names(str(open_mpi._ask(mine.fileno())["error"]), "launcher", "answer")
        others.sendall(b"x")
        others.close()
        assert "error" in open_mpi._ask(mine.fileno())
