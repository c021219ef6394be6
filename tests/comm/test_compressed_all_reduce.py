"""`Communicator.compressed_all_reduce` and `compressed_reduce_scatter` over every backend; residuals; bad input."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..load import scaled
from ..naming import assert_names, raises
from ..tier import full

FABRIC = hk.sim.Link(alpha_s=1e-6, beta_s=1e-9)
EVERY = ["cast(float16)", "cast(bfloat16)", "qsgd", "one-bit", "ok-topk(density=0.05, dense=never)",
         "power-sgd(rank=2)", "dgc(density=0.05)"]  # fmt: skip


def vector(rank: int, step: int, size: int) -> np.ndarray:
    return np.random.default_rng((rank, step)).standard_normal(size).astype(np.float32)


def over(comm: hk.Communicator, backends: list[str], run: Callable[..., Any], *arguments: Any) -> Any:
    comm.finalize()
    with hk.init(backends=backends, timeout=scaled(30)) as comm:
        return run(comm, *arguments)


def results(comm: hk.Communicator) -> list[bytes]:
    """Return what every compressor gives in three steps; equal on all ranks."""
    found = []
    for compressor in EVERY:
        state = hk.ResidualState()
        for step in range(3):
            x = vector(comm.rank, step, 2400)
            comm.compressed_all_reduce(x, compressor, state=state, tensors=[(40, 50), (400,)], op="avg")
            assert len({each.tobytes() for each in comm.all_gather_object(x)}) == 1
            found.append(x.tobytes())
        if not compressor.startswith(("power", "dgc")):
            x, out = vector(comm.rank, 9, 1200 * comm.size), np.empty(1200, np.float32)
            work = comm.compressed_reduce_scatter(out, x, compressor, async_op=True)
            assert work.wait(timeout=scaled(20)).nbytes > 0
            found.append(b"".join(each.tobytes() for each in comm.all_gather_object(out)))
    return found


@pytest.mark.parametrize("backends", [["shm"], ["gloo"], ["mpi"], ["shm", "gloo", "mpi"]], ids="+".join)
@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=full)])
def test_every_backend_gives_the_same(backends: list[str], num_ranks: int) -> None:
    wanted = hk.simulate(results, num_ranks, fabric=FABRIC).results[0]
    assert hk.spawn(over, num_ranks, backends, results, timeout=scaled(110)) == [wanted] * num_ranks


def many_at_once(comm: hk.Communicator) -> None:
    arrays = [vector(comm.rank, each, 3000) for each in range(8)]
    alone = [each.copy() for each in arrays]
    works = [comm.compressed_all_reduce(each, EVERY[number % 4], async_op=True) for number, each in enumerate(arrays)]
    dense = np.ones(5, np.float32)
    comm.all_reduce(dense)
    assert dense[0] == comm.size
    for work in reversed(works):
        work.wait(timeout=scaled(20))
    for number, each in enumerate(alone):
        if "qsgd" not in EVERY[number % 4]:
            comm.compressed_all_reduce(each, EVERY[number % 4])
            np.testing.assert_array_equal(each, arrays[number])


def test_many_at_once() -> None:
    hk.spawn(many_at_once, 2, timeout=scaled(60))


def of_every_type(comm: hk.Communicator) -> None:
    torch = pytest.importorskip("torch")
    with raises(hk.InvalidArgument, names=("x.clone()",)):
        comm.compressed_all_reduce(torch.ones(1).expand(8), "cast")
    read_only, part = np.ones(2 * comm.size, np.float32), np.empty(2, np.float32)
    read_only.flags.writeable = False
    comm.compressed_reduce_scatter(part, read_only, "cast")
    assert (part == comm.size).all()
    for x in (
        np.ones((3, 4), np.float16), np.ones((4, 6), np.float32)[:, ::2], torch.ones(3, 4),
        torch.ones(4, 3).t(), torch.ones(3, 4, dtype=torch.bfloat16),
    ):  # fmt: skip
        comm.compressed_all_reduce(x, "cast(bfloat16)")
        assert (x == comm.size).all()
    out, x = torch.zeros(2, dtype=torch.bfloat16), torch.ones(2 * comm.size, dtype=torch.bfloat16)
    comm.compressed_reduce_scatter(out, x, "cast(bfloat16)", op="avg")
    assert (out == 1).all()


def test_arrays_of_every_type() -> None:
    hk.spawn(of_every_type, 2, timeout=scaled(60))


def with_a_rank_of_its_own(comm: hk.Communicator, change: dict[str, Any]) -> str:
    given = {"compressor": "qsgd(levels=3)", "op": "sum", "nonfinite": "raise", "size": 100}
    given |= change if comm.rank == 1 else {}
    x = np.ones(given.pop("size"), np.float32)
    before, state = x.copy(), hk.ResidualState()
    try:
        comm.compressed_all_reduce(x, given.pop("compressor"), state=state, **given)
    except hk.CollectiveMismatch as error:
        np.testing.assert_array_equal(x, before)
        assert state.num_steps == 0 and state.residual is None
        return str(error)
    raise AssertionError("nobody was told")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"compressor": "qsgd(levels=5)"}, ("levels=3", "levels=5")),
        ({"compressor": "one-bit"}, ("Qsgd", "OneBit")),
        ({"compressor": "power-sgd"}, ("Qsgd", "PowerSgd")),
        ({"compressor": "ok-topk"}, ("Qsgd", "OkTopk")),
        ({"op": "avg"}, ("'sum'", "'avg'")),
        ({"nonfinite": "pass"}, ("'raise'", "'pass'")),
        ({"size": 101}, ("100", "101")),
    ],
    ids=str,
)
def test_ranks_that_differ(change: dict[str, Any], names: tuple[str, ...]) -> None:
    for told in hk.simulate(with_a_rank_of_its_own, 3, change, fabric=FABRIC).results:
        assert_names(told, "rank 1", *names)


def with_infinity(comm: hk.Communicator, compressor: str, nonfinite: str) -> str:
    state = hk.ResidualState("weights")
    comm.compressed_all_reduce(vector(comm.rank, 0, 400).reshape(20, 20), compressor, state=state)
    before = state.state_dict()
    x = np.ones((20, 20), np.float32)
    if comm.rank == 1:
        x[3, 5] = np.nan
    try:
        found = comm.compressed_all_reduce(x, compressor, state=state, nonfinite=nonfinite)
    except hk.NotFinite as error:
        assert state.num_steps == before["num_steps"]
        told = str(error)
    else:
        assert found.is_dense and np.isnan(x[3, 5]) and np.nansum(x) == 399 * comm.size
        told = ""
    for what in ("residual", "momentum"):
        np.testing.assert_array_equal(getattr(state, what), before[what])
    return told


@pytest.mark.parametrize("compressor", EVERY)
def test_elements_that_are_not_finite(compressor: str) -> None:
    for told in hk.simulate(with_infinity, 2, compressor, "raise", fabric=FABRIC).results:
        assert_names(told, "rank 1", "element 65", "weights")
    assert hk.simulate(with_infinity, 2, compressor, "pass", fabric=FABRIC).results == ["", ""]


def resumed(comm: hk.Communicator, compressor: str, is_interrupted: bool) -> list[bytes]:
    state, found = hk.ResidualState(), []
    for step in range(6):
        if is_interrupted and step == 3:
            saved = state.state_dict()
            for kept in (state.residual, state.momentum, *state.factors.values()):
                if kept is not None:
                    kept.fill(7)  # what was saved is a copy
            state = hk.ResidualState()
            state.load_state_dict(saved)
        x = vector(comm.rank, step, 400).reshape(20, 20)
        comm.compressed_all_reduce(x, compressor, state=state)
        found.append(x.tobytes())
    return found


@pytest.mark.parametrize("compressor", EVERY)
def test_a_state_is_saved_and_restored(compressor: str) -> None:
    one, other = (hk.simulate(resumed, 2, compressor, each, fabric=FABRIC).results for each in (False, True))
    assert one == other


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"version": 2}, hk.InvalidArgument, ("2", "1")),
        ({"momentum": np.ones(3)}, hk.InvalidArgument, ("momentum", "float64")),
        ({"residual": np.full(3, np.inf, np.float32)}, hk.InvalidArgument, ("residual",)),
        ({"factors": [np.ones((2, 1), np.float32)]}, hk.InvalidArgument, ("factors",)),
        ({"factors": {0: np.ones(2, np.float32)}}, hk.InvalidArgument, ("factor", "(2,)")),
        ({"num_steps": True}, hk.InvalidArgument, ("num_steps", "True")),
        ({"other": 1}, hk.InvalidArgument, ("other",)),
    ],
    ids=lambda each: str(each)[:40],
)
def test_damaged_states(change: dict[str, Any], error: type[Exception], names: tuple[str, ...]) -> None:
    state = hk.ResidualState()
    state.residual = np.ones(3, np.float32)
    before = state.state_dict()
    with raises(error, names=names):
        state.load_state_dict({**before, **change})
    assert repr(state.state_dict()) == repr(before)


def deviates_later(comm: hk.Communicator, one: tuple[str, int], other: tuple[str, int]) -> str:
    """Every rank has made both sums before; then they differ."""
    for compressor, size in (one, other):
        comm.compressed_all_reduce(np.ones(size, np.float32), compressor)
    compressor, size = one if comm.rank == 0 else other
    try:
        comm.compressed_all_reduce(np.ones(size, np.float32), compressor, timeout=scaled(10))
    except hk.CollectiveMismatch as error:
        return str(error)
    raise AssertionError("nobody was told")


def test_ranks_that_differ_after_some_steps() -> None:
    sparse = "ok-topk(density=0.1, dense=never)"
    for one, other, names in (
        ((sparse, 100), ("cast", 100), ("OkTopk", "Cast")),
        ((sparse, 100), (sparse, 50), ("100", "50")),
        ((sparse, 100), ("ok-topk(dense=always)", 100), ("'never'", "'always'")),
    ):
        for told in hk.simulate(deviates_later, 2, one, other, fabric=FABRIC).results:
            assert_names(told, *names)


@pytest.mark.parametrize("compressor", [*EVERY, "ok-topk(density=0.05, values=int8, dense=never)",
                                        "power-sgd(rank=1, min_rate=0.1)"])  # fmt: skip
@pytest.mark.parametrize("value", [1e37, 1e38, 3e38])
def test_sums_that_overflow_leave_no_trace(compressor: str, value: float) -> None:
    def program(comm: hk.Communicator) -> float:
        state = hk.ResidualState()
        with np.errstate(all="ignore"):
            comm.compressed_all_reduce(np.full((8, 8), value, np.float32), compressor, state=state)
        for kept in (state.residual, state.momentum):
            assert kept is None or np.isfinite(kept).all()
        state.residual = state.momentum = None
        state.factors = {}
        for _ in range(40 if "ok-topk" in compressor or "dgc" in compressor else 2):
            x = np.ones((8, 8), np.float32)
            found = comm.compressed_all_reduce(x, compressor, state=state, op="avg")
            assert found.is_dense == (compressor == "power-sgd(rank=2)")  # factors of 8 by 8 are no smaller
        return float(np.abs(x).max())

    assert all(np.isfinite(each) and each > 0.5 for each in hk.simulate(program, 2, fabric=FABRIC).results)


def test_qsgd_of_large_elements() -> None:
    def program(comm: hk.Communicator) -> np.ndarray:
        total = np.zeros(4)
        for _ in range(200):
            x = np.array([1e37, 2e37, 3e37, -2e37], np.float32)
            comm.compressed_all_reduce(x, "qsgd", op="avg")
            total += x / 200
        return total

    found = hk.simulate(program, 2, fabric=FABRIC).results[0]
    np.testing.assert_allclose(found, [1e37, 2e37, 3e37, -2e37], rtol=0.02)


def test_arrays_of_one_step_have_random_numbers_of_their_own() -> None:
    def program(comm: hk.Communicator, names: tuple[str, str]) -> bool:
        pair = []
        for name in names:
            x = vector(0, 0, 500)
            comm.compressed_all_reduce(x, "qsgd(levels=3)", state=hk.ResidualState(name))
            pair.append(x)
        return bool((pair[0] == pair[1]).all())

    assert hk.simulate(program, 2, ("", ""), fabric=FABRIC).results == [False] * 2
    assert hk.simulate(program, 2, ("bucket 0", "bucket 1"), fabric=FABRIC).results == [False] * 2
    assert hk.simulate(program, 2, ("bucket 0", "bucket 0"), fabric=FABRIC).results == [True] * 2


@pytest.mark.parametrize(
    ("shape", "rank", "is_dense"), [((64, 64), 2, False), ((64, 64), 40, True), ((4096,), 1, True)]
)
def test_power_sgd_tells_when_nothing_becomes_smaller(shape: tuple[int, ...], rank: int, is_dense: bool) -> None:
    def program(comm: hk.Communicator) -> Any:
        return comm.compressed_all_reduce(np.ones(shape, np.float32), f"power-sgd(rank={rank})")

    for found in hk.simulate(program, 2, fabric=FABRIC).results:
        assert (found.is_dense, found.nbytes == 0) == (is_dense, is_dense)


def test_power_sgd_comes_back_from_zeros() -> None:
    """After a gradient of zeros, of gradients whose first row and column are zero."""

    def program(comm: hk.Communicator) -> float:
        state, gradient = hk.ResidualState(), vector(0, 0, 1024).reshape(32, 32)
        gradient[0] = gradient[:, 0] = 0
        for step in range(30):
            x = gradient.copy() if step else np.zeros((32, 32), np.float32)
            x[0, 0] = 0 if step else 1e-30  # the tensor takes part in the step
            comm.compressed_all_reduce(x, "power-sgd(rank=1)", state=state, op="avg")
        assert state.residual is not None
        return float(np.linalg.norm(state.residual) / np.linalg.norm(gradient))

    assert all(each < 20 for each in hk.simulate(program, 2, fabric=FABRIC).results)


@pytest.mark.parametrize("compressor", EVERY)
def test_what_a_tensor_keeps_waits_while_no_rank_has_a_gradient_for_it(compressor: str) -> None:
    """Whoever has asked for the sum does not look at it then."""

    def program(comm: hk.Communicator) -> None:
        state = hk.ResidualState()
        shapes = [(10, 12), (9,), (12, 20)]
        places = [slice(0, 120), slice(120, 129), slice(129, 369)]
        comm.compressed_all_reduce(vector(comm.rank, 0, 369), compressor, state=state, tensors=shapes)
        before = state.state_dict()
        x = vector(comm.rank, 1, 369)
        x[places[0]] = 0
        if comm.rank:
            x[places[1]] = 0  # one rank has a gradient
        comm.compressed_all_reduce(x, compressor, state=state, tensors=shapes)
        assert not x[places[0]].any() and x[places[2]].any()
        for what in ("residual", "momentum"):
            if before[what] is not None:
                np.testing.assert_array_equal(getattr(state, what)[places[0]], before[what][places[0]])
                if what == "residual":
                    assert (getattr(state, what)[places[2]] != before[what][places[2]]).any()
        if before["factors"]:
            np.testing.assert_array_equal(state.factors[0], before["factors"][0])

    hk.simulate(program, 3, fabric=FABRIC)


def test_a_residual_of_another_compressor_is_used() -> None:
    def program(comm: hk.Communicator) -> None:
        state = hk.ResidualState()
        x = np.array([8.0, 4.0, 2.0, 1.0], np.float32)
        comm.compressed_all_reduce(x, "ok-topk(density=0.25, dense=never)", state=state)
        x = np.array([0.0, 0.0, 0.0, 1e-20], np.float32)
        comm.compressed_all_reduce(x, "qsgd", state=state)
        assert state.residual is None and abs(x - [0, 8, 4, 2]).max() < 0.5

    hk.simulate(program, 2, fabric=FABRIC)


def test_a_dense_step_that_fails_or_overflows_keeps_the_residual() -> None:
    def program(comm: hk.Communicator) -> None:
        state = hk.ResidualState()
        sparse, dense = "ok-topk(density=0.25, dense=never)", "ok-topk(density=0.25, dense=always)"
        comm.compressed_all_reduce(np.array([8.0, 4.0, 2.0, 1.0], np.float32), sparse, state=state)
        x = np.array([np.inf, 0, 0, 0], np.float32)
        comm.compressed_all_reduce(x, dense, state=state, nonfinite="pass")
        np.testing.assert_array_equal(state.residual, np.array([0, 4, 2, 1], np.float32))
        for size in (4, 4):
            x = np.full(size, np.nan if comm.rank else 1.0, np.float32)
            with raises(hk.NotFinite, names=("rank 1",)):
                comm.compressed_all_reduce(x, dense, state=state)
        comm.sparse_all_reduce(np.full(4, np.inf, np.float32), k=1, state=state, dense="always")
        np.testing.assert_array_equal(state.residual, np.array([0, 4, 2, 1], np.float32))
        x = np.zeros(4, np.float32)
        comm.sparse_all_reduce(x, k=1, state=state, dense="always")
        np.testing.assert_array_equal(x, np.array([0, 8, 4, 2], np.float32))

    hk.simulate(program, 2, fabric=FABRIC)


def later_than_the_first(comm: hk.Communicator) -> None:
    comm.compressed_all_reduce(np.ones(4, np.float32), "cast", async_op=True, timeout=scaled(0.3)).wait()
    comm.barrier()
    if comm.rank:
        time.sleep(scaled(0.8))
    comm.compressed_all_reduce(np.ones(4, np.float32), "cast", async_op=True, timeout=scaled(30)).wait()


def test_each_sum_has_its_own_timeout() -> None:
    hk.spawn(later_than_the_first, 2, timeout=scaled(60))


def test_arrays_without_elements() -> None:
    def program(comm: hk.Communicator) -> None:
        for compressor in EVERY:
            assert comm.compressed_all_reduce(np.empty(0, np.float32), compressor).why == "x has no elements"

    hk.simulate(program, 2, fabric=FABRIC)


def test_memory_does_not_grow_with_sizes() -> None:
    def program(comm: hk.Communicator) -> None:
        for size in range(1, 1300):
            comm.sparse_all_reduce(np.ones(size, np.float32), k=1, dense="never")
        assert len(comm._sparse_sums()._trials) == 1000  # type: ignore[attr-defined]

    hk.simulate(program, 1, fabric=FABRIC)


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({"x": np.ones(4)}, hk.UnsupportedDtype, ("float64",)),
        ({"x": [1.0]}, hk.InvalidType, ("list",)),
        ({"op": "max"}, hk.InvalidArgument, ("op", "'max'", "avg")),
        ({"nonfinite": "skip"}, hk.InvalidArgument, ("nonfinite", "'skip'")),
        ({"state": {}}, hk.InvalidType, ("state", "dict")),
        ({"tensors": [(3,)]}, hk.InvalidArgument, ("3", "4")),
        ({"tensors": [3]}, hk.InvalidArgument, ("tensors", "3")),
        ({"tensors": [(-2, -2)]}, hk.InvalidArgument, ("tensors", "(-2, -2)")),
        ({"compressor": 7}, hk.InvalidType, ("int",)),
        ({"tensors": 5}, hk.InvalidArgument, ("tensors", "5")),
        ({"op": np.array(["sum", "avg"])}, hk.InvalidArgument, ("op",)),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bad_input(options: dict[str, Any], error: type[Exception], names: tuple[str, ...]) -> None:
    def program(comm: hk.Communicator) -> None:
        given = {"x": np.ones(4, np.float32), "compressor": "cast"} | options
        with raises(error, names=names):
            comm.compressed_all_reduce(**given)

    hk.simulate(program, 1, fabric=FABRIC)


@pytest.mark.parametrize(
    ("out", "x", "compressor", "names"),
    [
        (np.empty(3, np.float32), np.ones(4, np.float32), "cast", ("4", "3", "6")),
        (np.empty(2, np.float16), np.ones(4, np.float32), "cast", ("float32", "float16")),
        (np.empty(2, np.float32), np.ones(4, np.float32), "power-sgd", ("PowerSgd",)),
        (np.empty(2, np.float32), np.ones(4, np.float32), "dgc", ("Dgc",)),
    ],
    ids=str,
)
def test_bad_reduce_scatters(out: np.ndarray, x: np.ndarray, compressor: str, names: tuple[str, ...]) -> None:
    def program(comm: hk.Communicator) -> None:
        with raises(hk.InvalidArgument, names=names):
            comm.compressed_reduce_scatter(out, x, compressor)

    hk.simulate(program, 2, fabric=FABRIC)


def test_options_are_those_of_the_interface() -> None:
    common = {"comm", "x", "compressor", "state", "op", "nonfinite", "async_op", "timeout", "backend"}
    assert set(inspect.signature(hk.Communicator.compressed_all_reduce).parameters) == common | {"tensors"}
    assert set(inspect.signature(hk.Communicator.compressed_reduce_scatter).parameters) == common | {"out"}
