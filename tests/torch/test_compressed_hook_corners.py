"""Hooks that compress gradients where something is unusual: unused parameters, skipped steps, errors, copies of models,
modules and scales that change."""

from __future__ import annotations

import gc
import io
import pickle
import warnings
from typing import Any

import pytest

import hocket as hk

from ..load import scaled
from ..naming import assert_names, raises
from .test_compressed_hook import batch, net, spawned, wrapped

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.own_ranks


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


def differ(comm: hk.Communicator) -> None:
    """The hooks of ranks differ: all are told so at once, by the names of what differs."""
    for ours, names in (
        ({"dense_steps": comm.rank}, ("dense_steps=0", "dense_steps=1")),
        ({"nonfinite": ("raise", "pass")[comm.rank]}, ("'raise'", "'pass'")),
        ({"compressor": f"qsgd(levels={7 + comm.rank})"}, ("levels=7", "levels=8")),
    ):
        with raises(hk.CollectiveMismatch, names=("rank 0", "rank 1", *names)):
            hk.torch.compressed(**{"compressor": "cast", "comm": comm} | ours)


def test_ranks_that_differ() -> None:
    spawned(differ, 2)


def explained(comm: hk.Communicator) -> None:
    """Why a sum was dense, and that residuals of another model are not saved as those of this one."""
    state, hook = hk.torch.compressed("power-sgd(rank=2)", dense_steps=1)
    model = torch.nn.parallel.DistributedDataParallel(net())
    model.register_comm_hook(state, hook)
    for step, names in ((0, ("step 1", "dense")), (1, ("compressed",))):
        model(batch(comm.rank, step)).square().mean().backward()
        assert_names(state.explain(), *names)
    with raises(hk.InvalidArgument, names=("model",)):
        state.state_dict(net())
    assert state.state_dict(model)["residuals"]


def test_what_a_hook_tells() -> None:
    spawned(explained, 2)


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
