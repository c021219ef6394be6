"""The hooks of DistributedDataParallel that compress gradients: what reaches the parameters, residuals across buckets,
checkpoints, scales and numbers of ranks; bad input."""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk

from ..load import scaled
from ..naming import assert_names, raises

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.own_ranks

LR = 0.25


def net() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 30), torch.nn.Linear(30, 1)
    )


def batch(rank: int, step: int) -> Any:
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(1000 * rank + step))


def in_group(comm: hk.Communicator, run: Callable[..., Any], folder: str, *arguments: Any) -> Any:
    """Run something with a default group over hocket."""
    import torch.distributed as dist

    name = os.path.join(folder, "store")
    dist.init_process_group("hocket", store=dist.FileStore(name, comm.size), rank=comm.rank, world_size=comm.size)
    try:
        return run(comm, *arguments)
    finally:
        dist.destroy_process_group()


def spawned(run: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        return hk.spawn(in_group, num_ranks, run, folder, *arguments, timeout=scaled(100))


def wrapped(state: Any, cap_mb: float = 0.002) -> Any:
    """Return a model whose layers are in buckets of their own, as far as they fit."""
    model = torch.nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=cap_mb)
    model.register_comm_hook(state, hk.torch.CompressedState.reduce)
    return model


def gradients(model: Any) -> dict[str, Any]:
    return {name: each.grad.clone() for name, each in model.module.named_parameters()}


def nothing_is_lost(comm: hk.Communicator) -> None:
    """Gradients of a model that stays as it is: what was put in is in the means and in the residuals."""
    state, _ = hk.torch.ok_topk(0.05, dense="never")
    model, alone = wrapped(state), net()
    come_out = {name: torch.zeros_like(each) for name, each in alone.named_parameters()}
    for step in range(5):
        model.zero_grad()
        model(batch(comm.rank, step)).square().mean().backward()
        alone(batch(comm.rank, step)).square().mean().backward()  # adds up
        for name, each in gradients(model).items():
            assert len({row.numpy().tobytes() for row in comm.all_gather_object(each)}) == 1
            come_out[name] += each
    saved = state.state_dict(model)
    assert saved["world_size"] == comm.size and saved["residuals"].keys() == come_out.keys()
    for name, each in alone.named_parameters():
        put_in, left = each.grad.clone(), saved["residuals"][name].clone()
        comm.all_reduce(put_in)
        comm.all_reduce(left)
        torch.testing.assert_close(come_out[name] * comm.size + left, put_in, rtol=1e-4, atol=1e-5)
    lines = state.explain().splitlines()
    assert len(lines) > 1 and all("compressed" in line for line in lines)
    assert sum(int((each != 0).sum()) for each in gradients(model).values()) < 0.1 * sum(
        each.numel() for each in alone.parameters()
    )


def test_nothing_is_lost_when_buckets_change() -> None:
    spawned(nothing_is_lost, 2)


def trained(comm: hk.Communicator, density: float, num_steps: int, **options: Any) -> dict[str, Any]:
    state, _ = hk.torch.ok_topk(density, **options)
    model = wrapped(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(num_steps):
        optimizer.zero_grad()
        model(batch(comm.rank, step)).square().mean().backward()
        optimizer.step()
    return {name: each.detach() for name, each in model.module.named_parameters()}


def dense(comm: hk.Communicator, num_steps: int) -> dict[str, Any]:
    model = torch.nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(num_steps):
        optimizer.zero_grad()
        model(batch(comm.rank, step)).square().mean().backward()
        optimizer.step()
    return {name: each.detach() for name, each in model.module.named_parameters()}


def with_all_elements(comm: hk.Communicator) -> None:
    wanted = dense(comm, 4)
    for options in ({"dense": "never"}, {"dense": "auto"}, {"dense": "always"}, {"dense_steps": 9, "dense": "never"}):
        found = trained(comm, 1.0 if options.get("dense_steps") is None else 0.1, 4, **options)
        for name, each in wanted.items():
            torch.testing.assert_close(found[name], each, rtol=1e-5, atol=1e-6)


def test_all_elements_are_what_ddp_does() -> None:
    spawned(with_all_elements, 2)


def resumed(comm: hk.Communicator, is_interrupted: bool) -> list[float]:
    state, _ = hk.torch.ok_topk(0.05, dense="never")
    model = wrapped(state)
    losses = []
    for step in range(6):
        if is_interrupted and step == 3:
            saved, weights = state.state_dict(model), model.module.state_dict()
            state, _ = hk.torch.ok_topk(0.05, dense="never")
            model = wrapped(state)
            model.module.load_state_dict(weights)
            state.load_state_dict(saved, model)
        model.zero_grad()
        loss = model(batch(comm.rank, step)).square().mean()
        loss.backward()
        losses.append(float(loss))
        with torch.no_grad():
            for each in model.parameters():
                each -= LR * each.grad
    return losses


def both(comm: hk.Communicator) -> tuple[list[float], list[float]]:
    return resumed(comm, False), resumed(comm, True)


def test_a_checkpoint_keeps_residuals() -> None:
    for whole, parts in spawned(both, 2):
        # Buckets of the first step after a restart are those of a first step: thresholds are those of other buckets.
        assert whole[:3] == parts[:3]
        assert parts[3] == whole[3] and parts[-1] < parts[0]


def scaled_losses(comm: hk.Communicator, scales: list[float]) -> dict[str, Any]:
    scale = [1.0]
    state, _ = hk.torch.ok_topk(0.05, dense="never", loss_scale=lambda: scale[0])
    model = wrapped(state)
    for step, scale[0] in enumerate(scales):
        model.zero_grad()
        (model(batch(comm.rank, step)).square().mean() * scale[0]).backward()
    return {name: each / scale[0] for name, each in gradients(model).items()}


def all_scales(comm: hk.Communicator) -> None:
    one, other = (scaled_losses(comm, each) for each in ([1.0] * 4, [1.0, 64.0, 1024.0, 2.0]))
    for name, each in one.items():
        torch.testing.assert_close(other[name], each)


def test_a_scale_of_the_loss_that_changes() -> None:
    spawned(all_scales, 2)


HOOKS = [
    "cast",
    "qsgd",
    "one-bit",
    "dgc(density=0.1, momentum=0.5)",
    "power-sgd(rank=2)",
    "ok-topk(density=0.1, dense=never)",
]


def resumed_with(comm: hk.Communicator, compressor: str, is_interrupted: bool) -> tuple[list[float], dict[str, Any]]:
    """Train in buckets that stay as they are, so that a restart has the same ones."""
    state, _ = hk.torch.compressed(compressor)
    model = wrapped(state, 25.0)
    losses = []
    for step in range(6):
        if is_interrupted and step == 3:
            saved, weights = state.state_dict(model), model.module.state_dict()
            buffer = io.BytesIO()
            torch.save(saved, buffer)
            buffer.seek(0)
            state, _ = hk.torch.compressed(compressor)
            model = wrapped(state, 25.0)
            model.module.load_state_dict(weights)
            state.load_state_dict(torch.load(buffer, weights_only=True), model)
        model.zero_grad()
        loss = model(batch(comm.rank, step)).square().mean()
        loss.backward()
        losses.append(float(loss))
        with torch.no_grad():
            for each in model.parameters():
                each -= LR * each.grad
    return losses, state.state_dict(model)


def resumes(comm: hk.Communicator, compressor: str) -> None:
    (one, kept), (other, others) = (resumed_with(comm, compressor, each) for each in (False, True))
    # DistributedDataParallel orders the parameters of its buckets otherwise in the first step than later: groups of
    # elements that share a norm or a mean are others then.
    num_alike = 4 if compressor in ("qsgd", "one-bit") else 6
    np.testing.assert_allclose(one[:num_alike], other[:num_alike], rtol=1e-4)
    assert kept["num_steps"] == others["num_steps"] == 6
    for what in ("residuals", "momenta", "factors"):
        assert kept[what].keys() == others[what].keys()
    if compressor.startswith("dgc"):
        assert kept["momenta"].keys() == kept["residuals"].keys() != set()
    if compressor.startswith("power"):
        assert kept["factors"]


@pytest.mark.parametrize("compressor", HOOKS)
def test_every_hook_resumes(compressor: str) -> None:
    spawned(resumes, 2, compressor)


def through_the_bucket(comm: hk.Communicator) -> None:
    """A hook may read all of a bucket; ours gives back its buffer, of which `gradients` are views."""
    import torch.distributed as dist

    state, hook = hk.torch.compressed("cast")
    seen: list[Any] = []

    def looks(state: Any, bucket: Any) -> Any:
        before = {name: getattr(bucket, name)() for name in dir(bucket) if not name.startswith(("_", "set"))}
        future = hook(state, bucket)
        assert future.wait().data_ptr() == before["buffer"].data_ptr() == bucket.buffer().data_ptr()
        assert sum(each.numel() for each in before["gradients"]) == bucket.buffer().numel()
        seen.append(sorted(before))
        return future

    looks.__annotations__ |= {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}  # torch reads it
    model = torch.nn.parallel.DistributedDataParallel(net(), bucket_cap_mb=0.002)
    model.register_comm_hook(state, looks)
    model(batch(comm.rank, 0)).square().mean().backward()
    # What a later torch adds is to be looked at.
    assert set().union(*seen) == {"buffer", "gradients", "index", "is_last", "parameters"}


def test_everything_of_a_bucket() -> None:
    spawned(through_the_bucket, 2)


def with_infinity(comm: hk.Communicator, nonfinite: str) -> str:
    state, _ = hk.torch.ok_topk(0.05, dense="never", nonfinite=nonfinite)
    model = wrapped(state)
    model(batch(comm.rank, 0)).square().mean().backward()
    before = state.state_dict(model)["residuals"]
    model.zero_grad()
    factor = float("inf") if comm.rank == 1 else 1.0
    told = ""
    try:
        (model(batch(comm.rank, 1)) * factor).square().mean().backward()
        assert not all(bool(torch.isfinite(each).all()) for each in gradients(model).values())
    except hk.NotFinite as error:
        told = str(error)
    if nonfinite == "pass":
        after = state.state_dict(model)["residuals"]
        for name, each in before.items():
            torch.testing.assert_close(after[name], each, rtol=0, atol=0)
    return told


def test_infinite_gradients() -> None:
    for told in spawned(with_infinity, 2, "raise"):
        assert_names(told, "rank 1", "bucket 0")
    assert spawned(with_infinity, 2, "pass") == ["", ""]


def infinite_in_all_buckets(comm: hk.Communicator) -> tuple[int, list[str]]:
    """Return how many sums were over when the error came, and what became of all of them; rank 0 sums slowly."""
    state, _ = hk.torch.ok_topk(0.05, dense="never")
    model = wrapped(state, 0.0001)
    model(batch(comm.rank, 0)).square().mean().backward()
    own_sum, ends = state._comm.compressed_all_reduce, list[str]()

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.05 * (1 - comm.rank))
        try:
            return own_sum(*arguments, **options)
        except hk.HocketError as error:
            ends.append(type(error).__name__)
            raise

    state._comm.compressed_all_reduce = slowly  # type: ignore[method-assign]
    with pytest.raises(hk.NotFinite):
        (model(batch(comm.rank, 1)) * float("inf")).square().mean().backward()
    return len(ends), ends


def test_a_program_has_the_error_of_infinite_gradients_after_all_sums() -> None:
    assert spawned(infinite_in_all_buckets, 2) == [(5, ["NotFinite"] * 5)] * 2


def moved(comm: hk.Communicator) -> None:
    """A state that goes on between other ranks: here a rank alone."""
    state, _ = hk.torch.ok_topk(0.05, dense="never")
    model = wrapped(state)
    model(batch(comm.rank, 0)).square().mean().backward()
    before = state.state_dict(model)
    alone = comm.split(color=comm.rank)
    assert alone is not None
    state.use(alone)
    after = state.state_dict(model)
    assert after["world_size"] == 1
    for name, each in before["residuals"].items():
        torch.testing.assert_close(after["residuals"][name], each / comm.size)
    with raises(hk.InvalidArgument, names=("2", "1", "hocket.torch.reshard_residuals")):
        state.load_state_dict(before, model)


def test_other_ranks() -> None:
    spawned(moved, 2)


def saved(rank: int, num_ranks: int, **changes: Any) -> dict[str, Any]:
    residuals = {"0.weight": torch.full((40, 20), float(rank + 1))}
    kept = {"residuals": residuals, "momenta": {}, "factors": {"0.weight": torch.ones(20, 2)}, "num_steps": 3}
    return {"version": 2, "world_size": num_ranks, "rank": rank, "loss_scale": 2.0} | kept | changes


@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 1), (4, 2), (3, 2), (2, 5), (1, 8)])
def test_residuals_for_another_number_of_ranks(old: int, new: int) -> None:
    made = hk.torch.reshard_residuals([saved(rank, old) for rank in range(old)], new)
    assert len(made) == new and all(each["world_size"] == new and each["loss_scale"] == 2.0 for each in made)
    assert all(each["num_steps"] == 3 and each["factors"]["0.weight"].shape == (20, 2) for each in made)
    mean = sum(each["residuals"]["0.weight"][0, 0] for each in made if each["residuals"]) / new
    assert float(mean) == pytest.approx(sum(range(1, old + 1)) / old)
    assert [each["rank"] for each in made] == [*range(new)]


@pytest.mark.parametrize("new", [1, 2, 3])
def test_residuals_that_are_not_those_of_one_model(new: int) -> None:
    of_another = saved(1, 2, residuals={"0.weight": torch.ones(3)})
    with raises(hk.InvalidArgument, names=("'0.weight'", "(40, 20)", "(3,)")):
        hk.torch.reshard_residuals([saved(0, 2), of_another], new)
    with raises(hk.InvalidArgument, names=("0", "1")):
        hk.torch.reshard_residuals([saved(1, 2), saved(0, 2)], new)


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"version": 3}, hk.InvalidArgument, ("3", "2")),
        ({"world_size": 0}, hk.InvalidArgument, ("world_size", "0")),
        ({"world_size": 7}, hk.InvalidArgument, ("7", "1")),
        ({"rank": 1}, hk.InvalidArgument, ("rank", "1", "0")),
        ({"rank": "0"}, hk.InvalidArgument, ("rank", "'0'")),
        ({"loss_scale": 0.0}, hk.InvalidArgument, ("loss_scale", "0.0")),
        ({"loss_scale": float("nan")}, hk.InvalidArgument, ("loss_scale", "nan")),
        ({"residuals": [1]}, hk.InvalidType, ("residuals", "list")),
        ({"residuals": {"0.weight": 3}}, hk.InvalidArgument, ("'0.weight'", "3")),
        ({"residuals": {"0.weight": torch.full((40, 20), torch.nan)}}, hk.InvalidArgument, ("'0.weight'",)),
        ({"residuals": {"0.weight": torch.ones(20, 40)}}, hk.InvalidArgument, ("0.weight", "(20, 40)", "(40, 20)")),
        ({"residuals": {"9.weight": torch.ones(1)}}, hk.InvalidArgument, ("'9.weight'",)),
        ({"more": 1}, hk.InvalidArgument, ("more",)),
        ({"num_steps": 1.5}, hk.InvalidArgument, ("num_steps", "1.5")),
        ({"momenta": {"0.weight": torch.ones(3)}}, hk.InvalidArgument, ("0.weight", "(3,)", "(40, 20)")),
        ({"factors": {"0.weight": torch.ones(3)}}, hk.InvalidArgument, ("factors", "'0.weight'", "(3,)")),
    ],
    ids=str,
)
def test_wrong_checkpoints(change: dict[str, Any], error: type[Exception], names: tuple[str, ...]) -> None:
    def program(comm: hk.Communicator) -> None:
        state, _ = hk.torch.ok_topk(comm=comm)
        state.load_state_dict(saved(0, 1), net_of)
        before = state.state_dict(net_of)
        with raises(error, names=names):
            state.load_state_dict(saved(0, 1) | change, net_of)
        assert state.state_dict(net_of)["residuals"].keys() == before["residuals"].keys()

    net_of = net()
    hk.simulate(program, 1, fabric=hk.sim.Link(1e-6, 1e-9))


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({"density": 0}, hk.InvalidArgument, ("density", "0", "1")),
        ({"density": 1.01}, hk.InvalidArgument, ("density", "1.01")),
        ({"density": "1%"}, hk.InvalidArgument, ("density", "'1%'")),
        ({"codec": "int8"}, hk.InvalidType, ("codec", "'int8'", "ElementCodec")),
        ({"nonfinite": "skip"}, hk.InvalidArgument, ("nonfinite", "'skip'")),
        ({"dense": False}, hk.InvalidArgument, ("dense", "False")),
        ({"dense_steps": -1}, hk.InvalidArgument, ("dense_steps", "-1")),
        ({"loss_scale": 2.0}, hk.InvalidType, ("loss_scale", "float")),
        ({"comm": 3}, hk.InvalidType, ("comm", "int")),
        ({}, hk.InvalidArgument, ("hocket",)),
    ],
    ids=str,
)
def test_bad_input(options: dict[str, Any], error: type[Exception], names: tuple[str, ...]) -> None:
    with raises(error, names=names):
        hk.torch.ok_topk(**options)
