"""Gradients that travel compressed under `fit`: sums against the plain ones, residuals in files of trainings, scaled
losses, hybrid strategies, Keras; bad input."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import hocket as hk
from hocket.comm import Communicator
from hocket.train import Callback, GradientExchange, Trainer, fit

from ..load import scaled
from ..naming import raises
from .engine_ranks import network, samples

pytestmark = [pytest.mark.timeout(200), pytest.mark.own_ranks]
COMPRESSORS = ["cast(float16)", "qsgd", "one-bit(group=64)", "power-sgd(rank=2)", "dgc(density=0.2, momentum=0)",
               "ok-topk(density=0.2, dense=never)"]  # fmt: skip


class Saves(Callback):
    """Saves the training after some steps."""

    def __init__(self, path: Path, after: int) -> None:
        self._path, self._after = path, after

    def on_batch_end(self, trainer: Trainer, batch: int, logs: Any) -> None:
        if trainer.num_steps == self._after:
            trainer.save(self._path)


def trained(comm: Communicator, model: Any = None, **options: Any) -> list[float]:
    model = model or network()
    given = {"epochs": 4, "batch_size": 32, "strategy": "data", "show_progress": False, "loss": F.cross_entropy}
    optimizer = torch.optim.SGD(model.parameters(), lr=options.pop("lr", 0.5))
    return fit(model, samples(), optimizer=optimizer, comm=comm, **(given | options)).batch_losses


def all_compressors(comm: Communicator) -> None:
    plain = trained(comm)
    lossless = trained(comm, gradients="ok-topk(density=1.0, dense=never)")
    torch.testing.assert_close(torch.tensor(lossless), torch.tensor(plain), rtol=1e-3, atol=1e-5)
    for compressor in COMPRESSORS:
        losses = trained(comm, gradients=compressor)
        assert losses != plain and losses[-1] < 0.8 * losses[0], (compressor, losses)
        by_engine = trained(comm, engine="compressed", engine_options={"compressor": compressor})
        assert by_engine == losses
        late = trained(comm, engine="compressed", engine_options={"compressor": compressor, "dense_steps": 8})
        torch.testing.assert_close(torch.tensor(late[:8]), torch.tensor(plain[:8]), rtol=1e-4, atol=1e-6)


def test_fit_with_every_compressor() -> None:
    hk.spawn(all_compressors, 2, timeout=scaled(100))


def resumes(comm: Communicator, folder: str, compressor: str) -> None:
    """The residuals of all ranks go on as their mean: with all elements sent in the end, losses are those of one go."""
    path = Path(folder, "training.pt")
    whole = trained(comm, gradients=compressor, callbacks=[Saves(path, 5)], shuffle=False)
    kept = torch.load(path, weights_only=True)["kept"]
    assert kept["num_steps"] == 5
    assert kept["residuals"].keys() == dict(network().named_parameters()).keys()
    assert any(bool(each.any()) for each in kept["residuals"].values())
    assert (kept["momenta"].keys() == kept["residuals"].keys()) == compressor.startswith("dgc")
    assert bool(kept["factors"]) == compressor.startswith("power")
    rest = trained(comm, gradients=compressor, resume=path, shuffle=False)
    assert len(rest) == len(whole) - 5
    assert rest[0] == pytest.approx(whole[5], rel=1e-5)  # of the saved weights
    if compressor.startswith("power"):  # the mean of residuals gives the same means of gradients
        torch.testing.assert_close(torch.tensor(rest), torch.tensor(whole[5:]), rtol=2e-2, atol=1e-4)
    assert rest[-1] < whole[0]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trained(comm, resume=path, shuffle=False)
    assert any("residuals" in str(each.message) for each in told) == (comm.rank == 0)


@pytest.mark.parametrize(
    "compressor", ["power-sgd(rank=2)", "dgc(density=0.1, momentum=0.5)", "ok-topk(density=0.1, dense=never)"]
)
def test_a_training_goes_on_with_its_residuals(compressor: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hk.spawn(resumes, 2, folder, compressor, timeout=scaled(100))


def steep(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A loss whose gradients overflow with a scale of 2^127; its value is that of the cross entropy."""
    value = F.cross_entropy(output, target)
    return value + 100 * (value - value.detach()) if value > 0.5 else value


def counts_its_steps(comm: Communicator, folder: str) -> None:
    """Dense first steps are over after a restart, though nothing is kept of gradients."""
    path = Path(folder, "training.pt")
    options = {"engine": "compressed", "engine_options": {"compressor": "qsgd(levels=1)", "dense_steps": 4}}
    trained(comm, callbacks=[Saves(path, 8)], shuffle=False, **options)
    dense, ours = (trained(comm, resume=path, shuffle=False, **each) for each in ({}, options))
    assert dense[0] == ours[0] and dense[1] != ours[1]


def test_dense_steps_are_counted_across_restarts() -> None:
    with tempfile.TemporaryDirectory() as folder:
        hk.spawn(counts_its_steps, 2, folder, timeout=scaled(100))


def with_scaler(comm: Communicator) -> None:
    """A loss scale that falls after an overflow and grows later: gradients, and what is left of them, follow it."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4)
    losses = trained(comm, gradients="one-bit(group=64)", scaler=scaler, epochs=8, loss=steep, lr=0.01)
    assert scaler.get_scale() < 2.0**127
    assert losses[-1] < losses[0]
    constant = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10_000)
    changing = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    one, other = (trained(comm, gradients="one-bit(group=64)", scaler=each) for each in (constant, changing))
    assert changing.get_scale() > 1024.0
    torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-6)


def test_scaled_losses() -> None:
    hk.spawn(with_scaler, 2, timeout=scaled(100))


def hybrid(comm: Communicator) -> None:
    """Only gradients between copies are compressed: what stages send to each other stays as it is."""
    plain, ours = (
        trained(comm, strategy="hybrid", num_partitions=2, num_replicas=2, gradients=each)
        for each in (None, "ok-topk(density=1.0, dense=never)")
    )
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(plain), rtol=1e-3, atol=1e-5)


def test_hybrid_strategies() -> None:
    hk.spawn(hybrid, 4, timeout=scaled(100))


def mixed_types(comm: Communicator) -> None:
    """Parameters of double precision are summed as they are; those of half precision are compressed."""
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4, dtype=each) for each in (torch.float64, torch.bfloat16)])
    with GradientExchange(model, comm, "compressed", compressor="one-bit") as exchange:
        for step in range(2):
            inputs = [torch.full((2, 4), comm.rank + 1.0 + step, dtype=each.weight.dtype) for each in model]
            sum(each(x).sum().double() for each, x in zip(model, inputs, strict=True)).backward()
        kept = exchange.engine.kept()  # type: ignore[attr-defined]
    assert (model[0].weight.grad == 2 * (1.5 + 2.5)).all()
    assert kept.residuals.keys() == {"1.weight", "1.bias"}


def test_parameters_of_several_types() -> None:
    hk.spawn(mixed_types, 2, timeout=scaled(60))


def infinite(comm: Communicator) -> str:
    model = torch.nn.Linear(3, 2)
    try:
        with GradientExchange(model, comm, "compressed", compressor="cast"):
            (model(torch.ones(1, 3)) * (float("inf") if comm.rank else 1.0)).sum().backward()
    except hk.NotFinite as error:
        return str(error)
    raise AssertionError("nobody was told")


def test_infinite_gradients_are_named() -> None:
    for told in hk.spawn(infinite, 2, timeout=scaled(60)):
        assert "rank 1" in told and "bucket" in told


def test_bad_input() -> None:
    with hk.init() as comm:
        for options, error, names in (
            ({"gradients": "ok-topl"}, hk.InvalidArgument, ("ok-topk",)),
            ({"gradients": "qsgd(levels=0)"}, hk.InvalidArgument, ("levels",)),
            ({"gradients": 3}, hk.InvalidArgument, ("int",)),
            ({"gradients": "cast", "engine": "ring"}, hk.InvalidArgument, ("gradients", "'ring'")),
            ({"gradients": "cast", "engine_options": {"dense_steps": 1}}, hk.InvalidArgument, ("gradients",)),
            ({"gradients": "cast", "exact": True}, hk.InvalidArgument, ("exact=True",)),
        ):
            with raises(error, names=names):
                trained(comm, **options)
        with raises(hk.InvalidArgument, names=("nonfinite", "'skip'")):
            GradientExchange(network(), comm, "compressed", compressor="cast", nonfinite="skip")


@pytest.mark.parametrize(
    "kept",
    [
        [],
        {"residuals": {"nobody": torch.zeros(3)}},
        {"residuals": {"0.weight": torch.zeros(3)}},
        {"residuals": {"0.bias": torch.full((64,), torch.nan)}},
        {"factors": {"0.bias": torch.zeros(3)}},
        {"momenta": {"0.bias": 3}},
        {"num_steps": -1},
        {"others": {}},
    ],
    ids=lambda each: str(each)[:30],
)
def test_damaged_files(kept: Any, tmp_path: Path) -> None:
    path = tmp_path / "training.pt"
    with hk.init() as comm:
        trained(comm, callbacks=[Saves(path, 2)])
        content = torch.load(path, weights_only=True)
        assert content["kept"] == {}
        torch.save({**content, "kept": kept}, path)
        with raises(hk.InvalidArgument, names=(str(path),)):
            trained(comm, resume=path)
        del content["kept"]  # a file of an older version
        torch.save(content, path)
        assert trained(comm, resume=path)
