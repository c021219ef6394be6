"""`hocket.spawn`: results in rank order, and the first failure raised in the caller."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.errors import (
    CommTimeout,
    HocketError,
    InvalidArgument,
    InvalidType,
    PeerFailure,
    RemoteError,
)

from ..load import scaled
from ..naming import Given, assert_names, raises
from ..prefork.program import start_fresh_program

pytestmark = pytest.mark.own_ranks  # with the launcher's own time limit and reports; reused ranks have others


class _Unpicklable(Exception):
    """Holds a value that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("the lock is mine")
        self.lock = threading.Lock()


@pytest.fixture(autouse=True)
def _leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert os.listdir(folder) == []


@pytest.mark.timeout(30)
def test_results_come_in_rank_order() -> None:
    offset = np.arange(3)
    results = hk.spawn(lambda comm, factor: factor * comm.rank + offset, 3, 10, timeout=20)
    assert [result.tolist() for result in results] == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert hk.spawn(lambda comm: comm.timeout, 1, timeout=20) == [scaled(20.0)]


def _raise_on_rank_1(comm: hk.Communicator) -> None:
    if comm.rank == 1:
        raise LookupError("nothing on rank 1")
    comm.barrier()


@pytest.mark.timeout(30)
def test_first_remote_traceback_is_raised() -> None:
    with raises(LookupError, names=Given("nothing on rank 1")) as raised:
        hk.spawn(_raise_on_rank_1, 3, timeout=20)
    notes = "\n".join(raised.value.__notes__)
    assert "rank 1 of hocket.spawn" in notes
    assert f'File "{__file__}"' in notes and 'raise LookupError("nothing on rank 1")' in notes


def _raise_unpicklable(comm: hk.Communicator) -> None:
    raise _Unpicklable


@pytest.mark.timeout(30)
def test_exception_that_cannot_be_pickled() -> None:
    with raises(RemoteError, names=("_Unpicklable", Given("the lock is mine"))) as raised:
        hk.spawn(_raise_unpicklable, 2, timeout=20)
    assert "raise _Unpicklable" in "\n".join(raised.value.__notes__)


def _be_cancelled(comm: hk.Communicator) -> None:
    if comm.rank == 1:
        raise asyncio.CancelledError("by nobody")
    comm.barrier()


@pytest.mark.timeout(30)
def test_what_is_no_exception_counts_before_what_follows_from_it() -> None:
    with pytest.raises(asyncio.CancelledError, match="by nobody"):
        hk.spawn(_be_cancelled, 2, timeout=20)


def _own_error(comm: hk.Communicator) -> None:
    comm.recv(np.zeros(1), 1 - comm.rank, timeout=0.1)


@pytest.mark.timeout(30)
def test_own_errors_keep_what_they_carry() -> None:
    with pytest.raises(CommTimeout) as raised:
        hk.spawn(_own_error, 2, timeout=20)
    assert raised.value.ranks in ((0,), (1,))


def _end_alone(comm: hk.Communicator, how: str) -> None:
    comm.barrier()
    if comm.rank == 1 and how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 1:
        os._exit(7)
    comm.recv(bytearray(1), 1)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("how", ["SIGKILL", "7"])
def test_a_rank_that_ends_by_itself_is_the_cause(how: str) -> None:
    with pytest.raises(RemoteError) as raised:
        hk.spawn(_end_alone, 2, how, timeout=20)
    assert_names(str(raised.value), "rank 1", how)
    assert isinstance(raised.value.__cause__, PeerFailure)  # the consequence on rank 0


def _return_unpicklable(comm: hk.Communicator) -> Any:
    return threading.Lock()


@pytest.mark.timeout(30)
def test_result_that_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="pickle"):
        hk.spawn(_return_unpicklable, 2, timeout=20)


def _hang(comm: hk.Communicator) -> None:
    if comm.rank == 0:
        signal.pause()


@pytest.mark.timeout(40)
def test_timeout() -> None:
    with raises(CommTimeout, names=("2", "1 s")):
        hk.spawn(_hang, 2, timeout=1)


_WAITING = """
import signal, sys, threading
import hocket as hk

def wait(comm):
    comm.barrier()
    if comm.rank == 0:
        print("here", flush=True)
    signal.pause()

if sys.argv[1:]:
    signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
try:
    hk.spawn(wait, 2)
except hk.RemoteError:
    print("raised", flush=True)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "arguments", "code", "printed"),
    [
        (signal.SIGINT, (), -signal.SIGINT, "here"),
        (signal.SIGTERM, (), -signal.SIGTERM, "here"),
        (signal.SIGTERM, ("handles",), 0, "here heard raised"),
    ],
)
def test_signals_do_what_they_would_have_done(
    tmp_path: Path, number: int, arguments: tuple[str, ...], code: int, printed: str
) -> None:
    (tmp_path / "waits.py").write_text(_WAITING)
    command = [sys.executable, "waits.py", *arguments]
    with start_fresh_program(command, folder=tmp_path, environment=os.environ) as program:
        assert program.stdout is not None
        first = program.stdout.readline()
        program.send_signal(number)
        stdout, stderr = program.communicate(timeout=40)
    assert (program.returncode, (first + stdout).split()) == (code, printed.split())
    assert ("KeyboardInterrupt" in stderr) == (number == signal.SIGINT)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("code", [0, 3])
def test_rank_that_exits(code: int) -> None:
    with raises(RemoteError, names=("rank 1", str(code))):
        hk.spawn(lambda comm: sys.exit(code) if comm.rank == 1 else None, 2, timeout=20)


def _noop(comm: hk.Communicator) -> None: ...


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: hk.spawn("f", 2), InvalidType, ("fn", "'f'")),  # type: ignore[arg-type]
        (lambda: hk.spawn(_noop, 0), InvalidArgument, ("n", "1", "0")),
        (lambda: hk.spawn(_noop, 2.0), InvalidArgument, ("n", "2.0")),  # type: ignore[arg-type]
        (lambda: hk.spawn(_noop, 2, timeout=0), InvalidArgument, ("timeout", "0")),
        (lambda: hk.spawn(_noop, 2, timeout=float("nan")), InvalidArgument, ("timeout", "nan")),
        (lambda: hk.spawn(_noop, 2, timeout="1"), InvalidArgument, ("timeout", "'1'")),  # type: ignore[arg-type]
        (lambda: hk.spawn(_noop, 2, threading.Lock()), InvalidType, ("fn", "cloudpickle", "'_thread.lock'")),
    ],
    ids=["fn", "no ranks", "float ranks", "timeout 0", "timeout nan", "timeout text", "unpicklable argument"],
)
def test_bad_arguments(call: Callable[[], object], error: type[HocketError], names: tuple[str, ...]) -> None:
    with raises(error, names=names):
        call()


def test_more_ranks_than_there_is_room_for_are_refused() -> None:
    with raises(InvalidArgument, names=("100000", "oversubscribe=True")):
        hk.spawn(_raise_on_rank_1, 100_000)


@pytest.mark.timeout(30)
def test_code_keeps_its_file_where_cloudpickle_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like cloudpickle 3.1.3; a traceback without files would be useless."""
    import cloudpickle

    reduce_code = cloudpickle.CloudPickler.dispatch_table[CodeType]

    def without_file(code: CodeType) -> Any:
        make, parts = reduce_code(code)
        return make, tuple("<dynamic-code>" if each == code.co_filename else each for each in parts)

    monkeypatch.setitem(cloudpickle.CloudPickler.dispatch_table, CodeType, without_file)
    with pytest.raises(RuntimeError) as caught:
        hk.spawn(lambda comm: [_fail(each) for each in range(comm.size)], 1, timeout=20)
    notes = "".join(caught.value.__notes__)
    assert "<dynamic-code>" not in notes and __file__ in notes


def _fail(number: int) -> None:
    raise RuntimeError(f"{number}")


@pytest.mark.timeout(90)
def test_a_caller_that_is_killed_leaves_no_folder(tmp_path: Path) -> None:
    script = (
        "import os, signal, hocket as hk\n"
        "def die(comm):\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n"
        "    signal.pause()\n"
        "hk.spawn(die, 2, timeout=20)\n"
    )
    (tmp_path / "script.py").write_text(script)
    temporary = tmp_path / "temporary"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with start_fresh_program([sys.executable, "script.py"], folder=tmp_path, environment=environment) as program:
        program.communicate(timeout=40)
    assert program.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while os.listdir(temporary) and time.monotonic() < deadline:  # another process removes it
        time.sleep(0.01)
    assert os.listdir(temporary) == []
