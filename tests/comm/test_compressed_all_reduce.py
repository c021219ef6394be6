"""`Communicator.compressed_all_reduce` and `compressed_reduce_scatter` over every backend; residuals; bad input."""

from __future__ import annotations

import inspect
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
