"""Learning while a program runs: who is tried and chosen on made-up times, and real ranks, which have to agree."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.tune import Row, Table, TablePolicy, this_machine
from hocket.tune.find import PolicyByHosts
from hocket.tune.learn import Learner
from hocket.tune.model import ModelPolicy
from hocket.tune.window import TimedKind, Window

from ..load import scaled
from ..naming import assert_names, raises
from ..tier import sample

pytestmark = pytest.mark.timeout(100)

NBYTES = 4096


def _wrong_table(comm: hk.Communicator, order: tuple[str, ...] = ("gloo", "mpi", "shm")) -> Table:
    """One that says that the slowest is the fastest."""
    rows = [
        Row("all_reduce", "full", comm.size, NBYTES, backend, False, s, s, s)
        for backend, s in zip(order, (1.0e-6, 1.5e-6, 1.8e-6), strict=True)
    ]
    return Table(this_machine(comm.backends), tuple(rows))


def _with_three(comm: hk.Communicator, body: Callable[..., Any], *arguments: Any) -> Any:
    comm.finalize()
    with hk.init(backends=["shm", "gloo", "mpi"], timeout=scaled(60)) as again:
        return body(again, *arguments)


def _all_reduce(comm: hk.Communicator, times: int, nbytes: int = NBYTES, **options: Any) -> None:
    x = np.empty(nbytes // 4, np.float32)
    for number in range(times):
        x.fill(comm.rank + number % 7)
        work = comm.all_reduce(x, **options)
        if work is not None:
            work.wait()
        assert (x == sum(rank + number % 7 for rank in range(comm.size))).all()


def _pretend(seconds: dict[str, float]) -> None:
    """Have windows say that operations over a carrier take so long."""
    seen = Window.agreed

    def agreed(self: Window) -> dict[TimedKind, tuple[Any, bool]]:
        # Of libraries that are not named: as the slowest.
        slowest = max(seconds.values())
        return {
            kind: (np.full(len(times), seconds.get(kind.carrier, slowest)), is_blocking)
            for kind, (times, is_blocking) in seen(self).items()
        }

    Window.agreed = agreed  # type: ignore[method-assign]


def _climb(comm: hk.Communicator) -> tuple[list[str], list[tuple[str, str, bool]], str, str]:
    _pretend({"gloo": 1e-3, "mpi": 1e-4, "shm": 1e-5})
    comm.policy = TablePolicy(_wrong_table(comm))
    learner = Learner(comm, window=16)
    _all_reduce(comm, 1600)
    comm.barrier()
    explanation = str(comm.explain("all_reduce", NBYTES))
    elsewhere = comm.explain("all_reduce", 2 * NBYTES).chosen
    assert (
        comm.policy.choices(comm._chooser.group)["all_reduce", "full"] == learner.table.ranges["all_reduce", "full", 2]
    )
    assert comm.dup().explain("all_reduce", NBYTES).chosen == "gloo"  # the policy as it was set
    used = [record.backend for record in comm.records() if record.op == "all_reduce" and record.nbytes == NBYTES]
    lessons = [(each.incumbent, each.challenger, each.changed) for each in learner.lessons]
    learner.stop()
    return used[-100:], lessons, explanation, elsewhere


def test_the_fastest_is_found_and_used() -> None:
    of_ranks = hk.spawn(_with_three, 2, _climb, timeout=80)
    assert of_ranks[0] == of_ranks[1]
    used, lessons, explanation, elsewhere = of_ranks[0]
    assert set(used) == {"shm"}
    assert lessons[:2] == [("gloo", "mpi", True), ("mpi", "shm", True)]
    assert all(incumbent == "shm" and not changed for incumbent, _, changed in lessons[2:])
    assert "shm" in explanation.splitlines()[0]
    assert "learned while running: 10.00 times [10.00, 10.00] as fast as mpi" in explanation
    assert "measured while running at 4096 B" in explanation
    assert elsewhere == "gloo"  # nothing was seen of other sizes


def _on_real_times(comm: hk.Communicator) -> list[tuple[Any, ...]]:
    comm.policy = TablePolicy(_wrong_table(comm))
    learner = Learner(comm, window=16)
    x, out = np.zeros(1000, np.float32), np.zeros(1000 * comm.size, np.float32)
    y = np.arange(50, dtype=np.int64)
    prepared = comm.prepare("all_reduce", np.ones(NBYTES // 4, np.float32), "max")
    for number in range(300):
        x.fill(comm.rank)
        comm.all_gather(out, x)
        assert (out.reshape(comm.size, -1) == np.arange(comm.size)[:, None]).all()
        _all_reduce(comm, 1)
        _all_reduce(comm, 1, async_op=True)
        comm.broadcast(y, number % comm.size)
        assert (y == np.arange(50)).all()
        prepared()
        with comm.coalesced():
            comm.all_reduce(x, "max")
        assert comm.all_gather_object(number) == [number] * comm.size
        if number % 50 == 0:
            assert comm.dup().size == comm.size
    learner.stop()
    return [(each.seq, each.cell, each.incumbent, each.challenger, each.changed) for each in learner.lessons]


@pytest.mark.parametrize("num_ranks", sample([2, 3], 1))
def test_ranks_agree_whatever_they_measure(num_ranks: int) -> None:
    first, *others = hk.spawn(_with_three, num_ranks, _on_real_times, timeout=90)
    assert first and all(other == first for other in others)


def _asynchronous(comm: hk.Communicator) -> tuple[int, list[str]]:
    """Times of asynchronous operations are what callers lost to them, which is no time of a table."""
    _pretend({"gloo": 1e-3, "mpi": 1e-4, "shm": 1e-5})
    comm.policy = TablePolicy(_wrong_table(comm))
    learner = Learner(comm, window=16)
    _all_reduce(comm, 700, async_op=True)
    learner.stop()
    return sum(row.source == "run" for row in learner.table.rows), [each.challenger for each in learner.lessons][:2]


def test_asynchronous_operations_change_rules_alone() -> None:
    assert hk.spawn(_with_three, 2, _asynchronous, timeout=80) == [(0, ["mpi", "shm"])] * 2


def _without_a_table(comm: hk.Communicator) -> tuple[list[str], str]:
    """Over shared memory alone there are schedules to try."""
    _pretend({"shm": 1.0, "shm/recursive_doubling": 0.1})
    learner = Learner(comm, window=16)
    _all_reduce(comm, 1200)
    lessons = [each.challenger for each in learner.lessons if each.changed]
    learner.stop()
    return lessons, comm.explain("all_reduce", NBYTES).chosen


def test_schedules_are_tried_without_a_table() -> None:
    expected = (["shm/recursive_doubling"], "shm/recursive_doubling")
    assert hk.spawn(_without_a_table, 2, timeout=80) == [expected] * 2


def _another_policy(comm: hk.Communicator) -> tuple[bool, bool]:
    learner = Learner(comm, window=16)
    _all_reduce(comm, 300)
    policy = TablePolicy(_wrong_table(comm))
    comm.policy = policy
    _all_reduce(comm, 40)
    took_over = learner.table.rows[: len(policy.table.rows)] == policy.table.rows
    learner.stop()
    comm.policy = PolicyByHosts(policy, ModelPolicy())
    again = Learner(comm, window=16)
    _all_reduce(comm, 600)
    again.stop()
    choices, before = comm.policy.choices(comm._chooser.group), policy.choices(comm._chooser.group)
    kept = all(choices[key] == before[key] for key in before if not key[0].startswith("all_reduce"))
    comm.policy = ModelPolicy()
    again = Learner(comm, window=16)
    _all_reduce(comm, 100)
    comm.policy = policy
    again.stop()  # must not bring the old choices back
    return took_over, kept and comm._choose("all_reduce", "float32", "sum", NBYTES) == ("gloo", "")


def _a_fixed_policy(comm: hk.Communicator) -> int:
    Learner(comm, window=16)
    comm.policy = hk.Policy.fixed({"*": "shm"})
    with pytest.warns(UserWarning, match="_FixedPolicy"):
        _all_reduce(comm, 100)
    comm.policy = ModelPolicy()
    learner = Learner(comm, window=16)
    _all_reduce(comm, 700)
    learner.stop()
    return len(learner.lessons)


def test_a_policy_of_the_programs_own_ends_it() -> None:
    first, second = hk.spawn(_a_fixed_policy, 2, timeout=60)
    assert first == second > 0


def test_a_policy_set_meanwhile_is_taken_over() -> None:
    assert hk.spawn(_with_three, 2, _another_policy, timeout=80) == [(True, True)] * 2


def _wrong(comm: hk.Communicator) -> list[str]:
    errors = []

    def note(**options: Any) -> None:
        with pytest.raises(hk.InvalidArgument) as raised:
            Learner(comm, **options)
        errors.append(str(raised.value))

    with raises(hk.InvalidType, names=("comm", "hocket.Communicator", "3")):
        Learner(3)  # type: ignore[arg-type]
    note(window=15)
    note(window="many")
    note(num_pairs=5)
    note(window=32 if comm.rank else 8)
    note(window=32 + comm.rank)
    comm.policy = hk.Policy.fixed({"*": "shm"})
    note()
    comm.policy = ModelPolicy()
    learner = Learner(comm)
    note()
    learner.stop()
    learner.stop()
    Learner(comm).stop()
    return errors


def test_wrong_use() -> None:
    first, second = hk.spawn(_wrong, 2, timeout=60)
    rules = [("window", "16", "1024", "15"), ("window", "'many'"), ("num_pairs", "6", "5"), ("window", "8"),
             ("[[32, 6], [33, 6]]",), ("_FixedPolicy()",), ("world", "stop()")]  # fmt: skip
    for errors in (first, second):
        for names, each in zip(rules, errors, strict=True):
            assert_names(each, *names)
    assert_names(second[3], "rank 0")


def _named(comm: hk.Communicator) -> tuple[int, int]:
    """What names a library, or was prepared, is nothing that a policy has a say in."""
    learner = Learner(comm, window=16)
    prepared = comm.prepare("all_reduce", np.ones(NBYTES // 4, np.float32), "max")
    for _ in range(150):
        prepared()
        _all_reduce(comm, 1, backend="shm")
        _all_reduce(comm, 1, algorithm="native")
    named = len(learner.lessons)
    _all_reduce(comm, 600)
    learner.stop()
    return named, len(learner.lessons)


def test_operations_that_name_a_library_are_left_alone() -> None:
    (first, then), second = hk.spawn(_named, 2, timeout=60)
    assert (first, then) == second and first == 0 < then


def _in_place(comm: hk.Communicator) -> tuple[int, int]:
    x = comm.zeros(16 << 10)
    learner = Learner(comm, window=16)
    for _ in range(300):
        comm.all_reduce(x)
    learner.stop()
    return len(learner.lessons), [each.in_place for each in comm.records() if each.nbytes == x.nbytes].count(False)


def test_operations_in_place_say_nothing_of_others() -> None:
    assert hk.spawn(_in_place, 2, timeout=60) == [(0, 0), (0, 0)]


def _late(comm: hk.Communicator) -> list[str]:
    """After a signal in the middle of a turn it goes on; after finalize() a due turn is no crash."""
    learner = Learner(comm, window=16)
    if comm.rank == 0:
        seen, times = learner._learn, [0]

        def interrupted(posted: Any) -> None:
            seen(posted)
            times[0] += 1
            if times[0] == 3:
                raise KeyboardInterrupt

        learner._learn = interrupted  # type: ignore[method-assign]
    interrupts = 0
    for _ in range(900):
        try:
            _all_reduce(comm, 1)
        except KeyboardInterrupt:
            interrupts += 1
            _all_reduce(comm, 1)
    assert interrupts == (1 if comm.rank == 0 else 0)
    lessons = [str(each) for each in learner.lessons]
    comm.synchronize(timeout=20)
    comm.barrier()
    comm.finalize()
    for _ in range(40):
        with pytest.raises(hk.InvalidState):
            comm.all_reduce(np.zeros(4))
    with pytest.raises(hk.InvalidState):
        comm.explain("all_reduce", 16)
    return lessons


def test_interrupted_and_after_finalize() -> None:
    first, second = hk.spawn(_late, 2, timeout=60)
    assert first == second and first


def test_ranks_that_saw_less_decide_alike() -> None:
    """One rank's ring has lost an event: what the others know of it alone counts for nobody."""
    from hocket.tune.learn import _slowest

    kinds = [TimedKind("all_reduce", "float16", reduction, 64, "mpi") for reduction in ("avg", "sum")]
    windows = []
    for lost in (None, 0):
        window = Window(b"", 0, 16, ["shm", "mpi"], [])
        for place in range(16):
            if place != lost:
                window._places.setdefault(kinds[place % 2], []).append(place)
                window.times[:, place] = 1.0
        windows.append(window)
    agreed = np.minimum(windows[0].times, windows[1].times)
    agreed[:, 1] = -np.inf
    found = []
    for window in windows:
        window.times = agreed
        found.append((list(window.agreed()), list(_slowest(window.agreed()))))
    assert found[0] == found[1]


def _save(comm: hk.Communicator, path: Path) -> None:
    _pretend({"gloo": 1e-3, "mpi": 1e-4, "shm": 1e-5})
    whole = _wrong_table(comm)
    # Measured when MPI was not there: what is learned of it has to fit into the file all the same.
    backends = {name: words for name, words in whole.machine.backends.items() if name != "mpi"}
    before = Table(replace(whole.machine, backends=backends), tuple(row for row in whole.rows if row.backend != "mpi"))
    other = Row("broadcast", "moved", 2, 64, "gloo", False, 1e-6, 1e-6, 1e-6)
    comm.policy = TablePolicy(before)
    learner = Learner(comm, window=16)
    _all_reduce(comm, 700)
    learner.stop()
    if comm.rank == 0:
        hk.tune.save_table(Table(before.machine, (*before.rows, other)), path)  # as written meanwhile by another job
        assert learner.save(path) == path
        table = hk.tune.load_table(path)
        assert other in table.rows
        sources = {row.backend: row.source for row in table.rows if row.op == "all_reduce"}
        assert sources == {"gloo": "run", "mpi": "run", "shm": "run"}
        learned = "all_reduce", "full", 2
        assert table.ranges[learned] == learner.table.ranges[learned]
        assert ("broadcast", "moved", 2) in table.ranges
        new = hk.tune.load_table(learner.save(path.with_name("new.json")))
        assert new.ranges == learner.table.ranges


def test_saved_into_a_table_that_is_there(tmp_path: Path) -> None:
    hk.spawn(_with_three, 2, _save, tmp_path / "table.json", timeout=80)


def _dies(comm: hk.Communicator) -> str:
    Learner(comm, window=16)
    _all_reduce(comm, 100)
    if comm.rank == 1:
        os._exit(0)
    with pytest.raises(hk.PeerFailure) as raised:
        _all_reduce(comm, 1000)
    return type(raised.value).__name__


def test_a_dead_rank_is_noticed() -> None:
    with raises(hk.RemoteError, names="rank 1"):
        hk.spawn(_dies, 2, timeout=60)
