"""The hooks of DistributedDataParallel that compress gradients: what reaches the parameters, residuals across buckets,
checkpoints, scales and numbers of ranks; PowerSGD against torch's; bad input."""

from __future__ import annotations

import gc
import inspect
import io
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.collectives.compressed.power_sgd import orthogonal

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


def of_full_rank() -> Any:
    torch.manual_seed(4)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 10)
    )


def with_torchs_power_sgd(comm: hk.Communicator, rank: int, start: int) -> None:
    """Train with both, from the same weights and seed: gradients of every step are equal but for rounding.

    Of gradients whose rank is lower than asked for, torch's factors are wrong: its Gram-Schmidt of dependent columns is
    not orthogonal. The last layer of `net` has such ones.
    """
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    # One bucket: with several, torch's hook starts sums in callbacks, in another order on each rank.
    ours, theirs = (torch.nn.parallel.DistributedDataParallel(of_full_rank()) for _ in range(2))
    ours.register_comm_hook(*hk.torch.power_sgd(rank, seed=5, dense_steps=start, min_rate=1.5))
    theirs.register_comm_hook(
        PowerSGDState(None, rank, start_powerSGD_iter=start, min_compression_rate=1.5, random_seed=5), powerSGD_hook
    )
    for step in range(12):
        for model in (ours, theirs):
            model.zero_grad()
            model(batch(comm.rank, step)).square().mean().backward()
            with torch.no_grad():
                for each in model.parameters():
                    each -= 0.1 * each.grad
        for name, each in gradients(ours).items():
            torch.testing.assert_close(each, gradients(theirs)[name], rtol=1e-3, atol=1e-5)
    alone = of_full_rank()
    alone.load_state_dict(ours.module.state_dict())
    alone(batch(comm.rank, 12)).square().mean().backward()
    ours.zero_grad()
    ours(batch(comm.rank, 12)).square().mean().backward()
    comm.all_reduce(alone[0].weight.grad, "avg")
    assert not torch.allclose(gradients(ours)["0.weight"], alone[0].weight.grad, rtol=1e-2, atol=1e-4)


def of_lower_rank(comm: hk.Communicator) -> None:
    """The gradient of the layer before the last one is the sum of as many outer products as there are ranks."""
    model, alone = torch.nn.parallel.DistributedDataParallel(net()), net()
    model.register_comm_hook(*hk.torch.power_sgd(3, dense_steps=0))
    for each in (model, alone):
        each(batch(comm.rank, 0)).square().mean().backward()
    comm.all_reduce(alone[2].weight.grad, "avg")
    torch.testing.assert_close(gradients(model)["2.weight"], alone[2].weight.grad, rtol=1e-3, atol=1e-6)


def test_power_sgd_of_gradients_of_lower_rank() -> None:
    spawned(of_lower_rank, 2)


def test_torchs_power_sgd_of_gradients_of_lower_rank_is_wrong() -> None:
    """Why ours orthogonalizes otherwise; if this fails, torch has mended it."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

    columns = torch.outer(torch.arange(1.0, 31.0), torch.tensor([1.0, 0.3])) / 7
    factor = columns.clone().unsqueeze(0)
    _orthogonalize(factor)
    theirs = factor[0].T @ factor[0]
    assert (theirs - torch.eye(2)).abs().max() > 0.01
    ours = orthogonal(columns.numpy())
    np.testing.assert_allclose(ours.T @ ours, np.eye(2), atol=1e-6)


@pytest.mark.parametrize(("rank", "start"), [(1, 2), (2, 3), (4, 2)])
def test_power_sgd_is_that_of_torch(rank: int, start: int) -> None:
    spawned(with_torchs_power_sgd, 2, rank, start)


def test_power_sgd_has_the_options_of_torch() -> None:
    """Each option of torch's state is one of ours, or is named here."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    ours = {
        "process_group": "group", "matrix_approximation_rank": "rank", "start_powerSGD_iter": "dense_steps",
        "min_compression_rate": "min_rate", "random_seed": "seed",
    }  # fmt: skip
    left_out = {
        "use_error_feedback",  # always
        "warm_start",  # always
        "orthogonalization_epsilon",  # columns of zeros are orthogonalized without it
        "compression_stats_logging_frequency",  # explain() tells
        "batch_tensors_with_same_shape",  # a question of GPUs
    }
    theirs = [each for each in inspect.signature(PowerSGDState.__init__).parameters if each != "self"]
    assert {*theirs} == {*ours} | left_out
    known = {*inspect.signature(hk.torch.power_sgd).parameters, *inspect.signature(hk.torch.compressed).parameters}
    assert {*ours.values()} <= known


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


class Heads(torch.nn.Module):
    """One of two layers is used in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Linear(4, 1, bias=False) for _ in range(2))

    def forward(self, x: Any, is_first: bool) -> Any:
        return (self.first if is_first else self.second)(x)


def with_unused_parameters(comm: hk.Communicator) -> None:
    model = torch.nn.parallel.DistributedDataParallel(Heads(), find_unused_parameters=True)
    state, hook = hk.torch.ok_topk(0.125, dense="never")
    model.register_comm_hook(state, hook)
    model(torch.tensor([[8.0, 4.0, 2.0, 1.0]]), True).sum().backward()
    model.zero_grad()
    model(torch.full((1, 4), 0.5), False).sum().backward()
    assert model.module.first.weight.grad is None and model.module.second.weight.grad.max() == 0.5
    assert state.state_dict(model)["residuals"]["first.weight"].tolist() == [[0, 4, 2, 1]]


def test_unused_parameters_keep_their_residuals() -> None:
    spawned(with_unused_parameters, 2)


def with_skipped_step(comm: hk.Communicator) -> None:
    """A step with an infinite gradient in one bucket is thrown away: nothing is lost of the other one either."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[1].weight.fill_(1.0)
    scale = [1024.0]
    state, hook = hk.torch.ok_topk(0.25, dense="never", nonfinite="pass", loss_scale=lambda: scale[0])
    wrapped_model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-6)
    wrapped_model.register_comm_hook(state, hook)
    x = torch.tensor([[8.0, 4.0, 2.0, 1.0]])
    for _ in range(2):  # buckets are those of later steps
        wrapped_model.zero_grad()
        (wrapped_model(x).sum() * scale[0]).backward()
    before = state.state_dict(wrapped_model)["residuals"]
    with torch.no_grad():
        model[1].weight.fill_(float("inf"))  # the gradient of the first layer
    (wrapped_model(x * 0).sum() * scale[0]).backward()
    scale[0] = 512.0  # what the scaler does then
    with torch.no_grad():
        model[1].weight.fill_(1.0)
    wrapped_model.zero_grad()
    (wrapped_model(x * 0).sum() * scale[0]).backward()
    scale[0] = 1024.0
    for name, each in state.state_dict(wrapped_model)["residuals"].items():
        torch.testing.assert_close(each, before[name])


def test_a_skipped_step_gives_residuals_back() -> None:
    spawned(with_skipped_step, 2)


def after_an_error(comm: hk.Communicator) -> None:
    """The state can be saved after an error, and goes on with a new DistributedDataParallel of the same module."""
    module = net()
    model = torch.nn.parallel.DistributedDataParallel(module)
    state, hook = hk.torch.ok_topk(0.05, dense="never")
    model.register_comm_hook(state, hook)
    model(batch(comm.rank, 0)).square().mean().backward()
    before = state.state_dict(model)
    with raises(hk.NotFinite, names=("rank 1",)):
        (model(batch(comm.rank, 1)) * (float("inf") if comm.rank else 1.0)).square().mean().backward()
    after = state.state_dict(model)
    for name, each in before["residuals"].items():
        torch.testing.assert_close(after["residuals"][name], each, rtol=0, atol=0)
    del model
    gc.collect()  # it is in the frames of the error, too
    model = torch.nn.parallel.DistributedDataParallel(module)
    model.register_comm_hook(state, hook)
    model.zero_grad()
    model(batch(comm.rank, 2)).square().mean().backward()
    assert state.state_dict(model)["num_steps"] == 2


def test_after_an_error() -> None:
    spawned(after_an_error, 2)


def one_rank_loads(comm: hk.Communicator) -> None:
    """Only one rank takes a checkpoint over: all are told so in the first step."""
    state, hook = hk.torch.compressed("cast", dense_steps=4, timeout=scaled(20))
    model = torch.nn.parallel.DistributedDataParallel(net())
    model.register_comm_hook(state, hook)
    if comm.rank == 0:
        state.load_state_dict({**state.state_dict(model), "num_steps": 4}, model)
    with raises(hk.CollectiveMismatch, names=("OkTopk", "Cast")):
        model(batch(comm.rank, 0)).square().mean().backward()


def test_a_checkpoint_on_one_rank_only() -> None:
    spawned(one_rank_loads, 2)


def copied(comm: hk.Communicator) -> None:
    state, hook = hk.torch.ok_topk(comm=comm)
    model = torch.nn.parallel.DistributedDataParallel(net())
    model.register_comm_hook(state, hook)
    model(batch(comm.rank, 0)).square().mean().backward()
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    for save in (pickle.dumps, lambda each: torch.save(each, io.BytesIO())):
        with raises(hk.InvalidType, names=("state_dict",)):
            save(state)
    with raises(hk.InvalidType, names=("comm", "str")):
        state.use("x")
    with raises(hk.InvalidType, names=("model", "NoneType")):
        state.state_dict(None)


def test_copies_of_a_model() -> None:
    spawned(copied, 2)


def other_module(comm: hk.Communicator) -> None:
    state, hook = hk.torch.ok_topk(0.05, dense="never")
    model = wrapped(state)
    model(batch(comm.rank, 0)).square().mean().backward()
    state.use(comm)
    other = torch.nn.parallel.DistributedDataParallel(net())
    other.register_comm_hook(state, hook)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        other(batch(comm.rank, 1)).square().mean().backward()
    assert any("state_dict" in str(each.message) for each in told)
    saved = state.state_dict(model)
    assert saved["residuals"].keys() == dict(net().named_parameters()).keys()


def test_residuals_of_another_module_are_not_lost_in_silence() -> None:
    spawned(other_module, 2)


def with_a_bad_scale(comm: hk.Communicator, scale: Any) -> None:
    state, hook = hk.torch.ok_topk(loss_scale=lambda: scale)
    model = torch.nn.parallel.DistributedDataParallel(net())
    model.register_comm_hook(state, hook)
    with raises(hk.InvalidArgument, names=("loss_scale", repr(scale))):
        model(batch(comm.rank, 0)).square().mean().backward()


@pytest.mark.parametrize("scale", [None, 0, float("nan"), -1.0])
def test_bad_scales(scale: Any) -> None:
    spawned(with_a_bad_scale, 2, scale)


def of_a_type(comm: hk.Communicator, dtype: Any) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4, dtype=dtype))
    model.register_comm_hook(*hk.torch.ok_topk())
    with raises(hk.UnsupportedDtype, names=(str(dtype).removeprefix("torch."),)):
        model(torch.ones(2, 4, dtype=dtype)).abs().sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_types_that_are_not_compressed(dtype: Any) -> None:
    spawned(of_a_type, 2, dtype)


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
    return {"version": 1, "world_size": num_ranks, "loss_scale": 2.0} | kept | changes


@pytest.mark.parametrize(("old", "new"), [(1, 1), (2, 1), (4, 2), (3, 2), (2, 5), (1, 8)])
def test_residuals_for_another_number_of_ranks(old: int, new: int) -> None:
    made = hk.torch.reshard_residuals([saved(rank, old) for rank in range(old)], new)
    assert len(made) == new and all(each["world_size"] == new and each["loss_scale"] == 2.0 for each in made)
    assert all(each["num_steps"] == 3 and each["factors"]["0.weight"].shape == (20, 2) for each in made)
    mean = sum(each["residuals"]["0.weight"][0, 0] for each in made if each["residuals"]) / new
    assert float(mean) == pytest.approx(sum(range(1, old + 1)) / old)


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"version": 3}, hk.InvalidArgument, ("3", "1")),
        ({"world_size": 0}, hk.InvalidArgument, ("world_size", "0")),
        ({"world_size": 7}, hk.InvalidArgument, ("7", "1")),
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
        state.load_state_dict(saved(0, 1), net())
        before = state.state_dict(net_of)
        with raises(error, names=names):
            state.load_state_dict(saved(0, 1, **change), net_of)
        assert state.state_dict(net_of)["residuals"].keys() == before["residuals"].keys()

    net_of = net()
    hk.simulate(program, 1, fabric=hk.sim.Link(1e-6, 1e-9))


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({"density": 0}, hk.InvalidArgument, ("density", "0", "1")),
        ({"density": 1.01}, hk.InvalidArgument, ("density", "1.01")),
        ({"density": "1%"}, hk.InvalidArgument, ("density", "'1%'")),
        ({"codec": "int8"}, hk.InvalidType, ("codec", "str")),
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
