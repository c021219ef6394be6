"""`Communicator.sparse_all_reduce` over every backend: results, options, residuals, bytes of the kernel; bad input."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.collectives.sparse.sums import DENSE, NONFINITE
from hocket.observe.connections import _sockets_of
from hocket.observe.tcp_sockets import TcpSockets

from ..load import scaled
from ..naming import assert_names, raises
from ..tier import full

FABRIC = hk.sim.Link(alpha_s=1e-6, beta_s=1e-9)
CODECS = [hk.ElementCodec(places, values) for places in ("words", "halves", "packed")
          for values in ("float32", "bfloat16", "int8")]  # fmt: skip


def gradient(rank: int, step: int, size: int) -> np.ndarray:
    """Multiples of 1/64, so that sums are exact."""
    return np.rint(np.random.default_rng((rank, step)).standard_normal(size) * 64).astype(np.float32) / 64


def in_fixed_point(x: np.ndarray) -> np.ndarray:
    """In units of 2^-30: exact for what float32 keeps of small multiples of 1/64, rounded by a codec or not."""
    scaled_up = x.astype(np.float64) * 2.0**30
    return scaled_up.astype(np.int64)


def steps_of(comm: hk.Communicator, codec: hk.ElementCodec, size: int, num_steps: int, how: dict[str, Any]) -> None:
    """Check that nothing is lost: what was put in is in the results and in the residuals; and all ranks agree."""
    state = hk.ResidualState()
    put_in, come_out = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for step in range(num_steps):
        x = gradient(comm.rank, step, size)
        put_in += in_fixed_point(x)
        found = comm.sparse_all_reduce(x, density=0.02, state=state, codec=codec, dense="never", **how)
        assert not found.is_dense and len(found.places) <= round(0.02 * size)
        assert np.count_nonzero(x) == np.count_nonzero(found.values)
        np.testing.assert_array_equal(x[found.places], found.values)
        assert len({each.tobytes() for each in comm.all_gather_object(x)}) == 1
        come_out += in_fixed_point(x)
    assert state.residual is not None
    left = in_fixed_point(state.residual)
    comm.all_reduce(put_in)
    comm.all_reduce(left)
    difference = np.abs(put_in - come_out - left)
    # Scales of int8 are not powers of two: their products round.
    assert difference.max() <= (2**10 if codec.values == "int8" else 0)
    assert state.num_steps == num_steps and state.num_dense_steps == 0


def over(comm: hk.Communicator, backends: list[str], run: Callable[..., Any], *arguments: Any) -> Any:
    comm.finalize()
    with hk.init(backends=backends, timeout=scaled(30)) as comm:
        return run(comm, *arguments)


def every_codec(comm: hk.Communicator) -> None:
    for codec in CODECS:
        steps_of(comm, codec, 3000, 6, {})


@pytest.mark.parametrize("backends", [["shm"], ["gloo"], ["mpi"], ["shm", "gloo", "mpi"]], ids="+".join)
@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=full), pytest.param(4, marks=full)])
def test_nothing_is_lost_over_any_backend(backends: list[str], num_ranks: int) -> None:
    hk.spawn(over, num_ranks, backends, every_codec, timeout=110)


@pytest.mark.parametrize("num_ranks", [1, 3, 7])
def test_nothing_is_lost_between_virtual_ranks(num_ranks: int) -> None:
    hk.simulate(every_codec, num_ranks, fabric=FABRIC)


def bytes_of_the_kernel() -> tuple[int, int]:
    """Bytes that the TCP connections of this process have sent and received."""
    sockets = TcpSockets()
    try:
        own = _sockets_of(os.getpid())
        numbers = [each.numbers for each in sockets.open_sockets() if each.inode in own]
    finally:
        sockets.close()
    sent, received = ([each[name] for each in numbers] for name in ("sent_nbytes", "received_nbytes"))
    assert numbers and None not in sent and None not in received
    return int(sum(each or 0 for each in sent)), int(sum(each or 0 for each in received))


def traffic(comm: hk.Communicator, kind: str) -> list[tuple[float, float]]:
    """Return words sent and received in each step, in units of 4k."""
    size, k = 200_000, 20_000
    state, found = hk.ResidualState(), []
    for step in range(3):
        x = gradient(comm.rank, step, size) / np.float32(64)
        if kind == "one region":
            x[:k] += 64
        elif kind == "disjoint":
            x[np.arange(size) % comm.size != comm.rank] = 0
        comm.barrier()
        before = bytes_of_the_kernel()
        comm.barrier()
        comm.sparse_all_reduce(x, k, state=state, codec=hk.ElementCodec("words"), dense="never")
        comm.barrier()
        found.append(tuple((now - then) / 4 / (4 * k) for now, then in zip(bytes_of_the_kernel(), before, strict=True)))
    return found  # type: ignore[return-value]


@pytest.mark.own_ranks
@pytest.mark.parametrize("kind", ["spread", "one region", "disjoint"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_kernel_counts_no_more_than_4k_words(kind: str, num_ranks: int) -> None:
    # Control: two histograms of 64 P and three of up to 2048 numbers of 64 bits, sums and answers of the library: 7 %.
    for steps in hk.spawn(over, num_ranks, ["gloo"], traffic, kind, timeout=110):
        for sent, received in steps:
            assert 0.2 < sent < 1.05 + 0.10 and 0.2 < received < 1.05 + 0.10


def beside(comm: hk.Communicator) -> None:
    """Sums in flight, other operations beside them, and sums that wait."""
    states = [hk.ResidualState(str(number)) for number in range(3)]
    arrays = [gradient(comm.rank, number, 50_000) for number in range(3)]
    works = [comm.sparse_all_reduce(x, k=100, state=state, async_op=True, dense="never")
             for x, state in zip(arrays, states, strict=True)]  # fmt: skip
    other = np.ones(10)
    comm.all_reduce(other)
    assert other[0] == comm.size
    last = gradient(comm.rank, 3, 50_000)
    comm.sparse_all_reduce(last, k=100, dense="never")
    for x, work in zip(arrays, works, strict=True):
        found = work.wait(timeout=scaled(20))
        np.testing.assert_array_equal(x[found.places], found.values)
        assert work.wait() is found


def test_sums_in_flight() -> None:
    hk.spawn(beside, 2, timeout=50)
    hk.simulate(beside, 3, fabric=FABRIC)


def typed(comm: hk.Communicator, form: str) -> np.ndarray:
    """Return the sum of a gradient in a form."""
    torch = pytest.importorskip("torch")
    base = gradient(comm.rank, 0, 400)
    x: Any = {
        "numpy": lambda: base,
        "rows": lambda: base.reshape(20, 20),
        "half": lambda: base.astype(np.float16),
        "gaps": lambda: np.repeat(base, 2)[::2],
        "torch": lambda: torch.from_numpy(base),
        "torch rows": lambda: torch.from_numpy(base).view(20, 20),
        "torch bfloat16": lambda: torch.from_numpy(base).bfloat16(),
        "torch gaps": lambda: torch.from_numpy(np.repeat(base, 2))[::2],
        "torch parameter": lambda: torch.nn.Parameter(torch.from_numpy(base)),
    }[form]()
    comm.sparse_all_reduce(x, k=30, dense="never")
    return (x.detach().float().numpy() if hasattr(x, "detach") else x).astype(np.float32).reshape(-1)


FORMS = ("rows", "half", "gaps", "torch", "torch rows", "torch bfloat16", "torch gaps", "torch parameter")


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_many_forms(form: str) -> None:
    wanted, found = (hk.simulate(typed, 2, each, fabric=FABRIC).results for each in ("numpy", form))
    for one, other in zip(wanted, found, strict=True):
        assert np.count_nonzero(one) == 30
        np.testing.assert_allclose(other, one, rtol=2.0**-7 if "16" in form or form == "half" else 0)


def tried(comm: hk.Communicator) -> list[tuple[bool, str]]:
    state, found = hk.ResidualState(), []
    for step in range(11):
        x = gradient(comm.rank, step, 100_000)
        whole = x.copy() if state.residual is None else x + state.residual
        result = comm.sparse_all_reduce(x, k=100, state=state)
        if result.is_dense:
            comm.all_reduce(whole)
            np.testing.assert_array_equal(x, whole)  # with what was left
            assert state.residual is None
        found.append((result.is_dense, result.why))
    assert state.num_steps == 11 and state.num_dense_steps == sum(is_dense for is_dense, _ in found)
    return found


def test_the_first_steps_find_out_what_is_faster() -> None:
    slow, fast = hk.sim.Link(1e-9, 1e-6), hk.sim.Link(1e-3, 1e-12)  # the bytes count, or the messages
    for fabric, is_dense in ((slow, False), (fast, True)):
        of_ranks = hk.simulate(tried, 4, fabric=fabric).results
        assert all(each == of_ranks[0] for each in of_ranks)
        assert [each for each, _ in of_ranks[0]] == [True] * 4 + [False] * 4 + [is_dense] * 3
        assert_names(of_ranks[0][-1][1], "ms")
    of_ranks = hk.spawn(tried, 2, timeout=50)
    assert of_ranks[0] == of_ranks[1] or [each for each, _ in of_ranks[0]] == [each for each, _ in of_ranks[1]]


def not_finite(comm: hk.Communicator, nonfinite: str) -> str:
    state = hk.ResidualState("layer 3")
    comm.sparse_all_reduce(gradient(comm.rank, 0, 500), k=10, state=state, dense="never", nonfinite=nonfinite)
    before = state.state_dict()
    x = gradient(comm.rank, 1, 500)
    if comm.rank == 1:
        x[7], x[9] = np.nan, np.inf
    given = x.copy()
    told = ""
    try:
        found = comm.sparse_all_reduce(x, k=10, state=state, dense="never", nonfinite=nonfinite)
        assert found.is_dense and np.isnan(x[7]) and np.isinf(x[9]) and np.isfinite(np.delete(x, [7, 9])).all()
    except hk.NotFinite as error:
        np.testing.assert_array_equal(x, given)
        told = str(error)
    np.testing.assert_array_equal(state.state_dict()["residual"], before["residual"])
    comm.sparse_all_reduce(gradient(comm.rank, 2, 500), k=10, state=state, dense="never", nonfinite=nonfinite)
    return told


def test_what_is_not_finite_is_named_or_passed_on() -> None:
    for told in hk.simulate(not_finite, 3, "raise", fabric=FABRIC).results:
        assert_names(told, "rank 1", "nan", "element 7", "layer 3")
    assert hk.simulate(not_finite, 3, "pass", fabric=FABRIC).results == ["", "", ""]


def overflowing(comm: hk.Communicator) -> None:
    state = hk.ResidualState()
    for _ in range(2):
        x = np.zeros(8, np.float32)
        x[:2] = 3e38
        comm.sparse_all_reduce(x, k=1, state=state, dense="never")


def test_a_residual_that_overflows_is_named() -> None:
    with raises(hk.NotFinite, names=("rank 0", "inf", "element 1")):
        hk.simulate(overflowing, 1, fabric=FABRIC)


DEVIATIONS: list[dict[str, Any]] = [
    {"k": 11},
    {"k": None, "density": 0.5},
    {"size": 501},
    {"codec": hk.ElementCodec(values="int8")},
    {"nonfinite": "pass"},
    {"dense": "auto"},
    {"op": "avg"},
]


def deviating(comm: hk.Communicator, given: dict[str, Any]) -> str:
    options: dict[str, Any] = {"size": 500, "k": 10, "dense": "never", "state": hk.ResidualState()}
    if comm.rank == 1:
        options |= given
    x = gradient(comm.rank, 0, options.pop("size"))
    before = x.copy()
    with pytest.raises(hk.CollectiveMismatch) as caught:
        comm.sparse_all_reduce(x, **options)
    np.testing.assert_array_equal(x, before)
    assert options["state"].residual is None
    comm.sparse_all_reduce(gradient(comm.rank, 0, 500), k=10)
    return str(caught.value)


@pytest.mark.parametrize("given", DEVIATIONS, ids=str)
def test_ranks_that_deviate(given: dict[str, Any]) -> None:
    for told in hk.simulate(deviating, 3, given, fabric=FABRIC).results:
        assert_names(told, "rank 1", "ranks 0, 2", *map(str, given.values() if "density" not in given else [250]))


def only(**options: Any) -> Callable[[], object]:
    def run() -> None:
        def program(comm: hk.Communicator) -> None:
            x = options.pop("x", np.ones(10, np.float32))
            comm.sparse_all_reduce(x, **options)

        hk.simulate(program, 1, fabric=FABRIC)

    return run


def read_only() -> np.ndarray:
    x = np.ones(10, np.float32)
    x.flags.writeable = False
    return x


def of_torch(name: str) -> Any:
    torch = pytest.importorskip("torch")
    return {
        "sparse": lambda: torch.ones(10).to_sparse(),
        "csr": lambda: torch.ones(2, 5).to_sparse_csr(),
        "meta": lambda: torch.ones(10, device="meta"),
        "integers": lambda: torch.ones(10, dtype=torch.int32),
        "double": lambda: torch.ones(10, dtype=torch.float64),
    }[name]()


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({}, hk.InvalidArgument, ("k", "density")),
        ({"k": 1, "density": 0.5}, hk.InvalidArgument, ("k", "density")),
        ({"k": 0}, hk.InvalidArgument, ("k", "1", "10", "0")),
        ({"k": -3}, hk.InvalidArgument, ("k", "-3")),
        ({"k": 11}, hk.InvalidArgument, ("k", "10", "11")),
        ({"k": 2.0}, hk.InvalidArgument, ("k", "2.0")),
        ({"k": True}, hk.InvalidArgument, ("k", "True")),
        ({"density": 0.0}, hk.InvalidArgument, ("density", "0.0")),
        ({"density": 1.5}, hk.InvalidArgument, ("density", "1.5")),
        ({"density": float("nan")}, hk.InvalidArgument, ("density", "nan")),
        ({"density": "0.1"}, hk.InvalidArgument, ("density", "'0.1'")),
        ({"k": 1, "x": np.ones(0, np.float32)}, hk.InvalidArgument, ("0", "1")),
        ({"density": 0.1, "x": np.ones(0, np.float32)}, hk.InvalidArgument, ("0", "1")),
        ({"k": 1, "x": np.ones(4)}, hk.UnsupportedDtype, ("float64", "float32", "bfloat16")),
        ({"k": 1, "x": np.ones(4, np.int32)}, hk.UnsupportedDtype, ("int32", "float32")),
        ({"k": 1, "x": [1.0, 2.0]}, hk.InvalidType, ("list",)),
        ({"k": 1, "x": read_only()}, hk.InvalidArgument, ("read-only",)),
        ({"k": 1, "x": "sparse"}, hk.InvalidArgument, ("torch.sparse_coo", "comm.all_reduce")),
        ({"k": 1, "x": "csr"}, hk.InvalidArgument, ("torch.sparse_csr",)),
        ({"k": 1, "x": "meta"}, hk.InvalidArgument, ("meta",)),
        ({"k": 1, "x": "integers"}, hk.UnsupportedDtype, ("torch.int32",)),
        ({"k": 1, "x": "double"}, hk.UnsupportedDtype, ("torch.float64",)),
        ({"k": 1, "state": {}}, hk.InvalidType, ("ResidualState", "dict")),
        ({"k": 1, "codec": "int8"}, hk.InvalidType, ("ElementCodec", "'int8'")),
        ({"k": 1, "op": "max"}, hk.InvalidArgument, ("op", "'max'", "sum", "avg")),
        ({"k": 1, "nonfinite": "drop"}, hk.InvalidArgument, ("nonfinite", "'drop'", *NONFINITE)),
        ({"k": 1, "dense": True}, hk.InvalidArgument, ("dense", "True", *DENSE)),
        ({"k": 1, "backend": "no_such"}, hk.BackendUnavailable, ("no_such",)),
    ],
    ids=str,
)
def test_bad_input(options: dict[str, Any], error: type[Exception], names: tuple[str, ...]) -> None:
    given = dict(options)
    if isinstance(given.get("x"), str):
        given["x"] = of_torch(given["x"])
    with raises(error, names=names):
        only(**given)()


def test_options_are_those_of_the_interface() -> None:
    given = set(inspect.signature(hk.Communicator.sparse_all_reduce).parameters)
    assert given == {
        "comm", "x", "k", "density", "state", "codec", "algorithm", "op", "nonfinite", "dense",
        "async_op", "timeout", "backend",
    }  # fmt: skip


def test_codecs_that_do_not_exist() -> None:
    with raises(hk.InvalidArgument, names=("places", "'word'", "'words'")):
        hk.ElementCodec("word")
    with raises(hk.InvalidArgument, names=("values", "'float16'", "bfloat16")):
        hk.ElementCodec(values="float16")


def test_states_are_saved_and_restored() -> None:
    def program(comm: hk.Communicator, is_interrupted: bool) -> list[bytes]:
        state, found = hk.ResidualState(), []
        for step in range(6):
            if is_interrupted and step == 3:
                saved = state.state_dict()
                state.residual = None  # what was saved is a copy
                state = hk.ResidualState()
                state.load_state_dict(saved)
                assert state.num_steps == 3
            x = gradient(comm.rank, step, 300)
            comm.sparse_all_reduce(x, k=7, state=state, dense="never")
            found.append(x.tobytes())
        return found

    whole, parts = (hk.simulate(program, 2, each, fabric=FABRIC).results for each in (False, True))
    assert whole == parts


def test_a_scale_of_the_loss_that_changes() -> None:
    def program(comm: hk.Communicator, factor: float) -> np.ndarray:
        state = hk.ResidualState()
        x = gradient(comm.rank, 0, 300)
        comm.sparse_all_reduce(x, k=7, state=state, dense="never")
        state.scale(factor)
        x = gradient(comm.rank, 1, 300) * np.float32(factor)
        comm.sparse_all_reduce(x, k=7, state=state, dense="never")
        return x / np.float32(factor)

    one, other = (hk.simulate(program, 2, each, fabric=FABRIC).results for each in (1.0, 1024.0))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"residual": np.ones(5, np.float32)}, hk.InvalidArgument, ("layer", "5", "3")),
        ({"residual": np.ones(3)}, hk.InvalidArgument, ("float32", "float64")),
        ({"residual": np.array([1, np.nan, 0], np.float32)}, hk.InvalidArgument, ("finite",)),
        ({"residual": "abc"}, hk.InvalidArgument, ("float32",)),
        ({"version": 2}, hk.InvalidArgument, ("2", "1")),
        ({"num_steps": -1}, hk.InvalidArgument, ("num_steps", "-1")),
        ({"num_dense_steps": "1"}, hk.InvalidArgument, ("num_dense_steps", "'1'")),
        ({"other": 1}, hk.InvalidArgument, ("other", "residual")),
        (None, hk.InvalidType, ("NoneType",)),
    ],
    ids=str,
)
def test_wrong_states_change_nothing(
    change: dict[str, Any] | None, error: type[Exception], names: tuple[str, ...]
) -> None:
    state = hk.ResidualState("layer")
    state.residual = np.ones(3, np.float32)
    saved: Any = None if change is None else state.state_dict() | change
    with raises(error, names=names):
        state.load_state_dict(saved)
    np.testing.assert_array_equal(state.residual, np.ones(3, np.float32))
    with raises(hk.InvalidArgument, names=("layer", "3", "10")):
        only(k=1, state=state)()
    for factor in (0.0, float("inf"), float("nan")):
        with raises(hk.InvalidArgument, names=(repr(factor),)):
            state.scale(factor)


@pytest.mark.parametrize("dense", DENSE)
def test_averages(dense: str) -> None:
    def program(comm: hk.Communicator) -> None:
        state = hk.ResidualState()
        for step in range(12):
            x = gradient(comm.rank, step, 500)
            whole = x if state.residual is None else x + state.residual
            comm.all_reduce(given := whole.copy())
            found = comm.sparse_all_reduce(x, k=500, state=state, op="avg", dense=dense)
            assert found.is_dense or dense != "always"
            np.testing.assert_array_equal(x, given / np.float32(comm.size))

    hk.simulate(program, 3, fabric=FABRIC)


def test_all_elements_are_the_dense_sum() -> None:
    def program(comm: hk.Communicator) -> None:
        x = gradient(comm.rank, 0, 777)
        dense = x.copy()
        comm.all_reduce(dense)
        state = hk.ResidualState()
        comm.sparse_all_reduce(x, k=777, state=state, dense="never")
        np.testing.assert_array_equal(x, dense)
        assert state.residual is not None and not state.residual.any()

    hk.simulate(program, 5, fabric=FABRIC)


def left_alone(comm: hk.Communicator, is_async: bool) -> tuple[str, float]:
    """Rank 1 leaves before the second sum."""
    x = gradient(comm.rank, 0, 50_000)
    comm.sparse_all_reduce(x, k=100, dense="never")
    if comm.rank == 1:
        return "", 0.0
    begin_s = time.monotonic()
    try:
        found = comm.sparse_all_reduce(x, k=100, dense="never", async_op=is_async)
        found.wait()
    except hk.HocketError as error:
        return type(error).__name__, time.monotonic() - begin_s
    return "nothing", 0.0


@pytest.mark.own_ranks
@pytest.mark.parametrize("is_async", [False, True])
def test_a_rank_that_left(is_async: bool) -> None:
    (kind, seconds), _ = hk.spawn(left_alone, 2, is_async, timeout=50)
    assert kind in ("PeerFailure", "Aborted") and seconds < scaled(10)


def late(comm: hk.Communicator) -> str:
    x = gradient(comm.rank, 0, 50_000)
    comm.sparse_all_reduce(x, k=100, dense="never")  # makes the duplicate, within the communicator's timeout
    if comm.rank == 1:
        comm.recv(np.zeros(1), 0)
        return ""
    with pytest.raises(hk.CommTimeout) as caught:
        comm.sparse_all_reduce(x, k=100, dense="never", timeout=0.5)
    comm.send(np.zeros(1), 1)
    return str(caught.value)


@pytest.mark.own_ranks
def test_a_rank_that_is_late_is_named() -> None:
    told, _ = hk.spawn(late, 2, timeout=50)
    assert_names(told, "rank 1", "0.5")
