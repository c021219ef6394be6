"""Compressors: what they send and lose, against formulas and plain NumPy; texts, damaged messages, bad input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.collectives import Cast, Compressor, Dgc, OneBit, PowerSgd, Qsgd, Zfp, compressor, compressors
from hocket.collectives.compressed.kept import KeptOfTensors
from hocket.collectives.compressed.quantized import Quantizer, most_nbytes

from ..naming import raises

FABRIC = hk.sim.Link(alpha_s=1e-6, beta_s=1e-9)

QUANTIZERS = [Cast("float16"), Cast("bfloat16"), Qsgd(), Qsgd(levels=3, group=7), OneBit(), OneBit(group=8),
              "zfp(tolerance=0.01)", "zfp(rate=8)", "zfp(tolerance=0)"]  # fmt: skip
EVERY = [
    *QUANTIZERS,
    "ok-topk(density=0.1, dense=never)",
    "ok-topk(density=0.1, values=int8, dense=never)",
    "power-sgd(rank=2)",
    "dgc(density=0.1)",
    "dgc(density=0.1, momentum=0, max_norm=3, warmup_steps=3)",
]


def made(given: Any) -> Compressor:
    if "zfp" in str(given):
        pytest.importorskip("zfpy")
    return compressor(given)


def on_virtual_ranks(program: Callable[..., Any], num_ranks: int) -> list[Any]:
    results: list[Any] = hk.simulate(program, num_ranks, fabric=FABRIC).results
    return results


def vector(size: int, *seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_every_compressor_is_here() -> None:
    assert {type(compressor(each)) for each in EVERY if "zfp" not in str(each)} | {Zfp} == {*compressors().values()}


@pytest.mark.parametrize("given", QUANTIZERS, ids=str)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 513, 5000])
def test_a_message_gives_the_array_back(given: Any, size: int) -> None:
    quantizer = made(given)
    assert isinstance(quantizer, Quantizer)
    x = vector(size, 1)
    random = np.random.default_rng(2)
    message = quantizer.encode(x, random)
    assert message.dtype == np.uint8 and len(message) <= most_nbytes(size)
    assert quantizer.nbytes_of(size) in (None, len(message))
    found = quantizer.decode(message, size)
    assert found is not None and found.dtype == np.float32 and found.shape == (size,)
    limits = {
        Cast: lambda: np.abs(x) * 2.0 ** -(8 if "bfloat16" in str(quantizer) else 11) + 2.0**-24,
        Qsgd: lambda: _norms(x, quantizer) / quantizer.levels,  # type: ignore[attr-defined]
        OneBit: lambda: np.abs(np.abs(x) - _means(x, quantizer)) + 1e-6,
        Zfp: lambda: {0.01: 0.01, 0: 0.0, None: 1.0}[quantizer.tolerance],  # type: ignore[attr-defined]
    }
    assert (np.abs(found - x) <= limits[type(quantizer)]()).all()


def _norms(x: np.ndarray, quantizer: Any) -> np.ndarray:
    groups = [x[at : at + quantizer.group] for at in range(0, len(x), quantizer.group)]
    return np.concatenate([np.full(len(each), np.linalg.norm(each) * (1 + 1e-6)) for each in groups] or [x])


def _means(x: np.ndarray, quantizer: Any) -> np.ndarray:
    groups = [x[at : at + quantizer.group] for at in range(0, len(x), quantizer.group)]
    return np.concatenate([np.full(len(each), np.abs(each).mean()) for each in groups] or [x])


def test_bfloat16_is_rounded_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    bits = np.random.default_rng(5).integers(0, 1 << 32, 100_000, np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = np.concatenate((x[np.isfinite(x)], np.array([0.0, -0.0, 1e-45, 3.3e38, -3.3e38], np.float32)))
    quantizer = Cast("bfloat16")
    found = quantizer.decode(quantizer.encode(x, np.random.default_rng(0)), len(x))
    wanted = torch.from_numpy(x).to(torch.bfloat16).float().numpy()
    largest = np.float32(torch.finfo(torch.bfloat16).max)
    wanted = np.clip(wanted, -largest, largest)  # what would be infinite is cut: the rest stays in the residual
    assert found is not None
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("levels", [1, 7, 127])
def test_the_mean_of_many_is_the_array(levels: int) -> None:
    """Within 4 standard deviations, of 10,000 draws (QSGD, lemma 3.1); the deviation is that of the formula."""
    num_draws = 10_000
    x = vector(64, 7)
    quantizer = Qsgd(levels=levels, group=32)
    total, squares = np.zeros(64), np.zeros(64)
    random = np.random.default_rng(8)
    for _ in range(num_draws):
        found = quantizer.decode(quantizer.encode(x, random), 64)
        assert found is not None
        total += found
        squares += (found.astype(np.float64) - x) ** 2
    unit = _norms(x, quantizer) / levels
    share = np.abs(x) / unit % 1
    variance = share * (1 - share) * unit**2
    assert (np.abs(total / num_draws - x) <= 4 * np.sqrt(variance / num_draws) + 1e-6 * unit).all()
    np.testing.assert_allclose((squares / num_draws).sum(), variance.sum(), rtol=0.05)


@pytest.mark.parametrize("given", EVERY, ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_all_ranks_have_the_same_and_nothing_is_lost(given: Any, num_ranks: int) -> None:
    """What was put in is in the results and in the residuals; with momentum, what was put in has its factor."""
    chosen = made(given)
    shapes = [(12, 20), (9,), (), (30, 2, 10)]
    size = sum(int(np.prod(shape)) for shape in shapes)

    def program(comm: hk.Communicator) -> tuple[np.ndarray, np.ndarray, list[bytes], list[int]]:
        state = hk.ResidualState()
        put_in, come_out, results, nbytes = np.zeros(size), np.zeros(size), [], []
        for step in range(5):
            x = vector(size, comm.rank, step)
            put_in += x
            found = comm.compressed_all_reduce(x, chosen, state=state, tensors=shapes)
            come_out += x
            results.append(x.tobytes())
            nbytes.append(found.nbytes)
            assert not found.is_dense
        assert state.num_steps == 5 and state.num_dense_steps == 0
        left = np.zeros(size) if state.residual is None else state.residual.astype(np.float64)
        return put_in - left, come_out, results, nbytes

    of_ranks = on_virtual_ranks(program, num_ranks)
    assert all(each[2] == of_ranks[0][2] for each in of_ranks)
    if isinstance(chosen, Qsgd):  # keeps nothing, and is right on the average
        assert np.linalg.norm(of_ranks[0][1] - sum(each[0] for each in of_ranks)) < 5.0 * np.sqrt(num_ranks * size)
    elif not (isinstance(chosen, Dgc) and (chosen.momentum or chosen.max_norm)):
        np.testing.assert_allclose(sum(each[0] for each in of_ranks), of_ranks[0][1], atol=2e-5 * num_ranks)
    if num_ranks > 1:
        assert all(0 < nbytes < 2 * 4 * size for each in of_ranks for nbytes in each[3])
    else:
        assert of_ranks[0][3] == [0] * 5


@pytest.mark.parametrize("given", [each for each in EVERY if "sgd(rank" not in str(each) and "dgc" not in str(each)],
                         ids=str)  # fmt: skip
def test_a_reduce_scatter_has_the_sums_of_what_was_sent(given: Any) -> None:
    chosen, num_ranks, size = made(given), 4, 4 * 60

    def program(comm: hk.Communicator) -> tuple[np.ndarray, np.ndarray]:
        state = hk.ResidualState()
        put_in, come_out = np.zeros(size), np.zeros(size // num_ranks)
        for step in range(4):
            x, out = vector(size, comm.rank, step), np.empty(size // num_ranks, np.float32)
            before = x.copy()
            comm.compressed_reduce_scatter(out, x, chosen, state=state, op="avg")
            np.testing.assert_array_equal(x, before)
            put_in += x
            come_out += out
        return put_in - (0 if state.residual is None else state.residual), come_out

    of_ranks = on_virtual_ranks(program, num_ranks)
    sums = np.concatenate([each[1] for each in of_ranks]) * num_ranks
    wanted = sum(each[0] for each in of_ranks)
    if isinstance(chosen, Qsgd):
        assert np.linalg.norm(sums - wanted) < 5.0 * np.sqrt(num_ranks * size)
    else:
        np.testing.assert_allclose(sums, wanted, atol=1e-4)


def test_power_sgd_is_a_step_of_subspace_iteration() -> None:
    """Against the paper's algorithm 1, in double precision, and the error of the best approximation."""
    rows, columns, rank, num_ranks = 30, 40, 3, 3
    spectrum = np.diag(0.5 ** np.arange(30.0))

    def gradient(of_rank: int) -> np.ndarray:
        left = np.linalg.qr(np.random.default_rng(1).standard_normal((rows, rows)))[0]
        right = np.linalg.qr(np.random.default_rng(2).standard_normal((columns, rows)))[0]
        return (left @ spectrum @ right.T * (of_rank + 1)).astype(np.float32)

    start = vector(columns * rank, 3).reshape(columns, rank)

    def program(comm: hk.Communicator) -> list[np.ndarray]:
        state, found = hk.ResidualState(), []
        chosen = PowerSgd(rank=rank, draw=lambda shapes: [start.copy() for _ in shapes])
        for _ in range(3):
            x = gradient(comm.rank)
            comm.compressed_all_reduce(x, chosen, state=state, op="avg")
            found.append(x)
        return found

    found = on_virtual_ranks(program, num_ranks)[0]
    errors, q = [np.zeros((rows, columns))] * num_ranks, start.astype(np.float64)
    for step in range(3):
        matrices = [gradient(each).astype(np.float64) + errors[each] for each in range(num_ranks)]
        q = np.linalg.qr(q)[0]
        p = np.linalg.qr(sum(each @ q for each in matrices) / num_ranks)[0]
        q = sum(each.T @ p for each in matrices) / num_ranks
        errors = [each - p @ q.T for each in matrices]
        np.testing.assert_allclose(found[step], p @ q.T, atol=2e-5)
    mean = sum(gradient(each) for each in range(num_ranks)) / num_ranks
    best = np.linalg.norm(np.linalg.svd(mean)[1][rank:])
    assert np.linalg.norm(mean - found[0]) < 2 * best


def test_power_sgd_of_zeros() -> None:
    """torch's makes them NaN (pytorch#118567 asks for an epsilon)."""

    def program(comm: hk.Communicator) -> np.ndarray:
        state = hk.ResidualState()
        for _ in range(2):
            x = np.zeros((20, 20), np.float32)
            comm.compressed_all_reduce(x, "power-sgd(rank=2)", state=state)
        return x

    np.testing.assert_array_equal(on_virtual_ranks(program, 2)[1], np.zeros((20, 20)))


def test_deep_gradient_compression() -> None:
    """Against algorithm 4 of the paper on one rank, step by step."""
    size, k, momentum = 200, 20, 0.9

    def program(comm: hk.Communicator) -> list[np.ndarray]:
        state, found = hk.ResidualState(), []
        for step in range(8):
            x = vector(size, step)
            comm.compressed_all_reduce(x, Dgc(density=k / size, momentum=momentum, max_norm=10.0), state=state)
            found.append(x)
        return found

    u, v = np.zeros(size, np.float32), np.zeros(size, np.float32)
    for step, found in enumerate(on_virtual_ranks(program, 1)[0]):
        gradient = vector(size, step)
        gradient = gradient * np.float32(min(1, 10.0 / np.linalg.norm(gradient)))
        u = np.float32(momentum) * u + gradient
        v = v + u
        sent = np.argsort(-np.abs(v), kind="stable")[:k]
        wanted = np.zeros(size, np.float32)
        wanted[sent] = v[sent]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        u[sent] = v[sent] = 0


@pytest.mark.parametrize("given", QUANTIZERS, ids=str)
def test_damaged_messages(given: Any) -> None:
    quantizer, random = made(given), np.random.default_rng(11)
    assert isinstance(quantizer, Quantizer)
    x = vector(300, 12)
    whole = quantizer.encode(x, random)
    for number in range(300):
        message = whole.copy()
        if number % 3 == 0:
            message = message[: random.integers(len(message))]
        elif number % 3 == 1:
            message = np.concatenate((message, random.integers(0, 256, 1 + number, np.uint8)))
        else:
            message[:] = random.integers(0, 256, len(message), np.uint8)
        with np.errstate(all="ignore"):
            found = quantizer.decode(message, 300)
        assert found is None or found.shape == (300,)
        assert found is None or quantizer.nbytes_of(300) in (None, len(message))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("qsgd", Qsgd()),
        (" qsgd ( levels = 7 , group=64 ) ", Qsgd(7, 64)),
        ("cast(float16)", Cast("float16")),
        ("cast('float16')", Cast("float16")),
        ("power-sgd(2)", PowerSgd(2)),
        ("dgc(density=1e-3, max_norm=None)", Dgc()),
    ],
)
def test_texts(text: str, wanted: Compressor) -> None:
    assert compressor(text) == wanted and repr(compressor(text)) == repr(wanted)


def test_every_argument_can_be_given_by_text() -> None:
    for name, kind in compressors().items():
        if kind is Zfp:
            continue
        for each in fields(kind):  # type: ignore[arg-type]
            if each.name != "draw":
                value = getattr(kind(), each.name)
                assert compressor(f"{name}({each.name}={value!r})") == kind()
        assert list(inspect.signature(kind).parameters) == [each.name for each in fields(kind)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error", "names"),
    [
        ("qsdg", hk.InvalidArgument, ("qsdg", "qsgd")),
        ("qsgd(level=3)", hk.InvalidArgument, ("level", "levels")),
        ("qsgd(1, 2, 3, 4)", hk.InvalidArgument, ("levels",)),
        ("qsgd(1, levels=2)", hk.InvalidArgument, ("levels",)),
        ("qsgd(levels=0)", hk.InvalidArgument, ("levels", "0", "127")),
        ("qsgd(levels=__import__('os'))", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("qsgd(levels=3", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("qsgd(levels=3, levels=5)", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("qsgd(**{'levels': 3})", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("cast({[]: 1})", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("cast([1])", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("cast(1)", hk.InvalidArgument, ("float16", "bfloat16")),
        ("qsgd(levels=2 ** 99)", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("qsgd(levels=-'a')", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("zfp(tolerance=a)", hk.InvalidArgument, ("tolerance", "'a'")),
        ("zfp(rate='a')", hk.InvalidArgument, ("rate", "'a'")),
        ("qsgd()()", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("qsgd(" + "(" * 900 + ")", hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("qsgd" + "(" * 5000, hk.InvalidArgument, ("power-sgd(rank=2)",)),
        ("qsgd(group=0)", hk.InvalidArgument, ("group", "0")),
        ("qsgd(seed=-1)", hk.InvalidArgument, ("seed", "-1")),
        ("cast(float64)", hk.InvalidArgument, ("float64", "bfloat16")),
        ("one-bit(group=9)", hk.InvalidArgument, ("8", "9")),
        ("zfp", hk.InvalidArgument, ("tolerance", "rate")),
        ("zfp(tolerance=-1)", hk.InvalidArgument, ("tolerance", "-1")),
        ("zfp(rate=64)", hk.InvalidArgument, ("rate", "32")),
        ("power-sgd(rank=0)", hk.InvalidArgument, ("rank", "0")),
        ("power-sgd(min_rate=0)", hk.InvalidArgument, ("min_rate", "0")),
        ("power-sgd(draw=3)", hk.InvalidArgument, ("draw", "rank")),
        ("ok-topk(density=0)", hk.InvalidArgument, ("density", "0")),
        ("ok-topk(dense=maybe)", hk.InvalidArgument, ("dense", "maybe")),
        ("ok-topk(values=int4)", hk.InvalidArgument, ("int4", "int8")),
        ("dgc(momentum=1)", hk.InvalidArgument, ("momentum", "1")),
        ("dgc(max_norm=0)", hk.InvalidArgument, ("max_norm", "0")),
        ("dgc(warmup_steps=-1)", hk.InvalidArgument, ("warmup_steps", "-1")),
        (3, hk.InvalidType, ("int", "power-sgd(rank=2)")),
        (Qsgd, hk.InvalidType, ("Qsgd",)),
        (None, hk.InvalidType, ("NoneType",)),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bad_compressors(given: Any, error: type[Exception], names: tuple[str, ...]) -> None:
    with raises(error, names=names):
        compressor(given)


def test_bad_scales_of_residuals() -> None:
    for factor in ("2", 0, -1, float("nan"), float("inf"), True, None):
        with raises(hk.InvalidArgument, names=(repr(factor),)):
            hk.ResidualState().scale(factor)  # type: ignore[arg-type]
    with raises(hk.InvalidArgument, names=("residual",)):
        hk.ResidualState().load_state_dict({**hk.ResidualState().state_dict(), "residual": [[1.0], [1.0, 2.0]]})


def test_what_tensors_keep_is_taken_apart_and_put_together() -> None:
    state = hk.ResidualState()
    state.residual, state.momentum, state.num_steps = vector(9, 1), vector(9, 2), 4
    state.factors = {1: vector(6, 3).reshape(3, 2)}
    kept = KeptOfTensors.of(state, ["a", "b", "c"], [2, 6, 1])
    others = KeptOfTensors(7, {"d": np.ones(1, np.float32)})
    kept.add(others)
    kept.scale(2.0)
    new = hk.ResidualState()
    kept.give(new, ["c", "d", "b"], [1, 1, 6])
    assert new.residual is not None and new.momentum is not None and new.num_steps == 7
    np.testing.assert_allclose(new.residual, 2 * np.concatenate((state.residual[8:], [1.0], state.residual[2:8])))
    np.testing.assert_allclose(new.momentum, 2 * np.concatenate((state.momentum[8:], [0.0], state.momentum[2:8])))
    np.testing.assert_array_equal(new.factors[2], state.factors[1])
    assert kept.residuals.keys() == {"a"} and not kept.factors
