"""Virtual ranks: errors, ends, and unsupported calls."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.session.simulated_step import simulate_step
from hocket.sim import Link, Uniform
from hocket.trace.traffic import Traffic, TrafficStep

from ..naming import Given, assert_names, raises

pytestmark = pytest.mark.timeout(60)

_ALPHA_S, _BETA_S = 5e-6, 1e-9
_LINK = Link(_ALPHA_S, _BETA_S)


def _run(fn: Any, n: int, *args: Any, **options: Any) -> hk.Simulated:
    return hk.simulate(fn, n, *args, **{"fabric": _LINK, **options})


def test_members_that_disagree() -> None:
    def fn(comm: hk.Communicator) -> float:
        with pytest.raises(hk.CollectiveMismatch) as caught:
            comm.all_reduce(np.zeros(4 if comm.rank == 1 else 5))
        text = str(caught.value)
        assert_names(
            text, "1", "rank 1", "32 bytes", "ranks 0 and 2", "40 bytes", "all_reduce(sum)", "float64", __file__
        )
        x = np.ones(2)
        comm.all_reduce(x)  # it continues
        return float(x[0])

    assert _run(fn, 3).results == [3.0] * 3


def test_a_message_that_does_not_fit() -> None:
    def fn(comm: hk.Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.zeros(4), 1)
            return
        with raises(hk.CollectiveMismatch, names=("rank 1", "recv", "40 bytes", "rank 0", "send", "32 bytes")):
            comm.recv(np.zeros(5), 0)

    _run(fn, 2)


def test_a_rank_that_never_comes() -> None:
    def fn(comm: hk.Communicator) -> str:
        if comm.rank == 2:
            comm.compute(1000.0)
            with pytest.raises(hk.Aborted):
                comm.barrier()
            return ""
        with pytest.raises((hk.CommTimeout, hk.Aborted)) as caught:
            comm.barrier(timeout=3.0)
        assert comm.wtime() == pytest.approx(3.0)
        assert not isinstance(caught.value, hk.CommTimeout) or caught.value.ranks == (2,)
        return str(caught.value)

    texts = _run(fn, 3).results
    assert_names(texts[0] + texts[1], "barrier", "rank 2", "3 s")


def test_a_receive_that_was_given_up_leaves_no_trace() -> None:
    def fn(comm: hk.Communicator) -> float:
        x = np.zeros(1)
        if comm.rank == 0:
            comm.compute(1.0)
            comm.send(np.ones(1), 1)
            return comm.wtime()
        with pytest.raises(hk.CommTimeout):
            comm.recv(x, 0, timeout=0.5)
        comm.recv(x, 0)
        return float(x[0])

    assert _run(fn, 2).results[1] == 1.0


def test_nobody_waits_for_a_rank_that_left() -> None:
    def fn(comm: hk.Communicator) -> None:
        if comm.rank == 1:
            raise LookupError("nothing here")
        with raises(hk.PeerFailure, names="rank 1", ranks=(1,)):
            comm.barrier() if comm.rank == 0 else comm.recv(np.zeros(1), 1)
        assert comm.wtime() < 1.0

    with pytest.raises(LookupError, match="nothing here") as raised:
        _run(fn, 3)
    assert_names(raised.value.__notes__[0], "rank 1", "0 s")


def test_messages_that_wait_for_each_other() -> None:
    def fn(comm: hk.Communicator) -> None:
        comm.recv(np.zeros(1), 1 - comm.rank)

    with raises(hk.CommTimeout, names=("600 s", "recv")):
        _run(fn, 2)


def test_abort() -> None:
    def fn(comm: hk.Communicator) -> None:
        if comm.rank == 0:
            comm.compute(0.5)
            comm.abort("out of coffee")
            return
        with raises(hk.Aborted, names=("rank 0", Given("out of coffee"))):
            comm.barrier()
        assert comm.wtime() == pytest.approx(0.5)

    _run(fn, 3)


def test_abort_is_seen_by_who_only_looks() -> None:
    def fn(comm: hk.Communicator) -> float:
        if comm.rank == 1:
            comm.compute(0.25)
            comm.abort("enough")
            return 0.0
        work = comm.irecv(np.zeros(1), 1)
        with pytest.raises(hk.Aborted):
            _look_until_over(work)
        return comm.wtime()

    first, second = _run(fn, 2).results[0], _run(fn, 2).results[0]
    assert first == second == pytest.approx(0.25, abs=2e-6)


def _look_until_over(work: hk.Work) -> None:
    while not work.test():
        pass


def test_looking_has_a_deadline() -> None:
    def fn(comm: hk.Communicator) -> float:
        work = comm.irecv(np.zeros(1), 1 - comm.rank, timeout=0.01)
        with pytest.raises((hk.CommTimeout, hk.PeerFailure)):  # the other has timed out and left
            _look_until_over(work)
        return comm.wtime()

    assert _run(fn, 2).results == pytest.approx([0.01, 0.01], abs=2e-6)


def test_what_was_given_up_is_not_looked_at_any_more() -> None:
    def fn(comm: hk.Communicator) -> None:
        x = np.ones(1 << 22)
        works = [comm.isend(x, 1)] if comm.rank == 0 else [comm.all_reduce(x, async_op=True)]
        del x
        comm.abort("bye") if comm.rank == 0 else None
        del works
        gc.collect()
        with pytest.raises(hk.Aborted):
            comm.barrier()
        comm.compute(1.0)

    _run(fn, 2)


def test_who_leaves_before_others_have_come() -> None:
    def fn(comm: hk.Communicator) -> float:
        if comm.rank == 0:
            first = comm.group([0, 1])
            first.send(np.full(1, 7.0), 1)
            first.finalize()
            return 7.0
        comm.compute(1.0)
        if comm.rank == 1:
            x = np.zeros(1)
            comm.group([0, 1]).recv(x, 0)
            return float(x[0])
        with raises(hk.PeerFailure, names="rank 0", ranks=(0,)):
            comm.barrier()
        return 7.0

    assert _run(fn, 3).results == [7.0] * 3


def test_groups_without_data() -> None:
    def fn(comm: hk.Communicator) -> tuple[int, int]:
        part = comm.split(comm.rank % 2)
        assert part is not None
        with raises(hk.InvalidState, names="moves_data=True"):
            comm.all_gather_object(3)
        return part.rank, part.size

    assert _run(fn, 5, moves_data=False).results == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]


def test_many_operations_in_a_step() -> None:
    step = TrafficStep("all_reduce", 8, "float64", "sum")
    ran = simulate_step(Traffic("many", 2, "here", (step,) * 5000), _LINK)
    (each,) = ran.operations
    assert each.count == 5000 and each.seconds == pytest.approx(_ALPHA_S + 8 * _BETA_S, rel=1e-3)
    assert ran.seconds == pytest.approx(5000 * (_ALPHA_S + 8 * _BETA_S))


def test_what_a_rank_drops_in_flight_ends_with_it() -> None:
    def fn(comm: hk.Communicator) -> None:
        comm.dup().irecv(np.zeros(1), 1 - comm.rank)

    with raises(hk.Aborted, names=("recv", "rank 0", "rank 1")):
        _run(fn, 2)
    gc.collect()
    alive = weakref.ref(fn)
    del fn
    gc.collect()
    assert alive() is None


def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def fail_at_third(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_at_third)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        _run(lambda comm: comm.barrier(), 5)
    assert not any(thread.is_alive() for thread in started)


def test_a_cost_that_is_none() -> None:
    class Broken(Uniform):
        def message_cost(self, source: int, destination: int, nbytes: int) -> Any:
            raise LookupError("no such cable")

    def fn(comm: hk.Communicator) -> None:
        comm.sendrecv(np.zeros(1), 1 - comm.rank, np.zeros(1), 1 - comm.rank)

    with raises(hk.Aborted, names=("LookupError", Given("no such cable"))):
        hk.simulate(fn, 2, fabric=Broken(_LINK))


def test_other_threads_have_no_clock() -> None:
    def fn(comm: hk.Communicator) -> BaseException:
        failures: list[BaseException] = []

        def call() -> None:
            try:
                comm.barrier()
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        comm.barrier()
        return failures[0]

    for error in _run(fn, 2).results:
        assert type(error) is hk.InvalidState


_REAL = """
import hocket as hk, numpy as np
from hocket.sim import Link
world = hk.init()

def fn(comm):
    if comm.rank == 0 and world.rank == 0:
        try:
            world.recv(np.zeros(1), 1)
        except hk.InvalidState as error:
            assert type(error) is hk.InvalidState
            return True
    comm.barrier()

hk.simulate(fn, 1, fabric=Link.of(1, 1))
world.barrier()
"""


def test_real_ranks_are_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(_REAL)
    command = [sys.executable, "-m", "hocket.cli", "run", "-n", "2", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: _run(None, 2), hk.InvalidType, ("fn", "None")),
        (lambda: _run(print, 0), hk.InvalidArgument, ("n", "1", "0")),
        (lambda: _run(print, 2, timeout=-1), hk.InvalidArgument, ("timeout", "-1")),
        (lambda: _run(print, 2, fabric=3), hk.InvalidType, ("fabric", "Link", "Uniform", "Hosts", "3")),
        (lambda: _run(lambda comm: _run(print, 2), 2), hk.InvalidState, ()),
        (lambda: _run(lambda comm: comm.compute(-1), 2), hk.InvalidArgument, ("seconds", "0", "-1")),
        (lambda: _run(lambda comm: comm.bucket(), 2), hk.InvalidState, "fused()"),
        (lambda: _run(lambda comm: comm.shrink(), 2), hk.InvalidState, ()),
        (lambda: hk.init(backends="sim"), hk.BackendUnavailable, ("'sim'", "hocket.simulate")),
    ],
)
def test_wrong_calls(call: Any, error: type[Exception], names: str | tuple[str, ...]) -> None:
    with raises(error, names=names):
        call()


_PROGRAM = """
import sys
import hocket as hk, numpy as np
from hocket.sim import Link

def fn(comm):
    print("begun", flush=True)
    while True:
        work = comm.irecv(np.zeros(1), 1 - comm.rank, timeout=1e9)
        while sys.argv[1] == "test" and not work.test():
            pass
        while sys.argv[1] == "compute":
            comm.compute(1e-6)
        comm.barrier()

hk.simulate(fn, 2, fabric=Link.of(1, 1))
"""


@pytest.mark.parametrize("inside", ["barrier", "test", "compute"])
def test_ctrl_c(inside: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, inside]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None and program.stdout.readline() == b"begun\n"
    os.kill(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors and program.returncode != 0
