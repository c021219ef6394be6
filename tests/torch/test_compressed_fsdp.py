"""FSDP2 with compressed reduce-scatters: gradients against those of FSDP2 alone, residuals, options, bad input."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import hocket as hk

from ..naming import raises
from .test_compressed_hook import batch, net, spawned

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.own_ranks


def even_net() -> Any:
    """All shards are equally large."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 2))


def sharded(make: Callable[[], Any] = net, **options: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = make()
    fully_shard(model[0], **options)
    return fully_shard(model, **options)


def gradients(model: Any) -> dict[str, Any]:
    return {name: each.grad.full_tensor() for name, each in model.named_parameters()}


def backward(model: Any, rank: int, step: int, dtype: Any = torch.float32) -> dict[str, Any]:
    model.zero_grad()
    model(batch(rank, step).to(dtype)).float().square().mean().backward()
    return gradients(model)


def alone(rank: int, step: int) -> dict[str, Any]:
    model = even_net()
    model(batch(rank, step)).square().mean().backward()
    return {name: each.grad for name, each in model.named_parameters()}


def equal_to_fsdp(comm: hk.Communicator) -> None:
    dense = sharded()
    hk.torch.compress_fsdp(dense, "ok-topk(density=0.1, dense=always)")
    for name, each in backward(sharded(), comm.rank, 0).items():
        torch.testing.assert_close(backward(dense, comm.rank, 0)[name], each, rtol=1e-5, atol=1e-6)
    plain, ours = sharded(), sharded()
    shards = hk.torch.compress_fsdp(ours, "ok-topk(density=1.0)")
    for step in range(2):
        wanted = backward(plain, comm.rank, step)
        for name, each in backward(ours, comm.rank, step).items():
            torch.testing.assert_close(each, wanted[name], rtol=1e-5, atol=1e-6)
    assert len(shards.explain().splitlines()) == 2 and "compressed" in shards.explain()


def test_all_elements_are_what_fsdp_does() -> None:
    spawned(equal_to_fsdp, 2)


def nothing_is_lost(comm: hk.Communicator, compressor: str) -> None:
    """What all ranks put in is in the means and in the residuals, over all steps."""
    model = sharded(even_net)  # where shards are filled up with zeros, a compressor may send some for them
    shards = hk.torch.compress_fsdp(model, compressor)
    put_in, come_out = 0.0, 0.0
    for step in range(4):
        put_in += sum(float(each.double().sum()) for each in alone(comm.rank, step).values())
        come_out += sum(float(each.double().sum()) for each in backward(model, comm.rank, step).values())
    saved = shards.state_dict()
    assert saved["num_steps"] == 4 and saved["modules"].keys() == {"", "0"}
    left = sum(float(each.double().sum()) for each in saved["modules"].values())
    total = sum(comm.all_gather_object(put_in - left)) / comm.size
    assert total == pytest.approx(come_out, rel=1e-3, abs=1e-3)
    if compressor.startswith("ok"):
        num_sent = sum(int((each != 0).sum()) for each in gradients(model).values())
        assert num_sent <= 0.06 * comm.size * sum(each.numel() for each in even_net().parameters())


@pytest.mark.parametrize("compressor", ["ok-topk(density=0.05)", "cast(bfloat16)", "one-bit"])
def test_nothing_is_lost(compressor: str) -> None:
    spawned(nothing_is_lost, 2, compressor)


def resumed(comm: hk.Communicator) -> None:
    def run(is_interrupted: bool) -> list[Any]:
        model = sharded()
        shards = hk.torch.compress_fsdp(model, "ok-topk(density=0.05)")
        found = []
        for step in range(4):
            if is_interrupted and step == 2:
                saved = shards.state_dict()
                model = sharded()
                shards = hk.torch.compress_fsdp(model, "ok-topk(density=0.05)")
                shards.load_state_dict(saved)
            found.append(backward(model, comm.rank, step))
        return found

    for one, other in zip(run(False), run(True), strict=True):
        for name, each in one.items():
            torch.testing.assert_close(other[name], each, rtol=0, atol=0)


def test_a_checkpoint_keeps_residuals() -> None:
    spawned(resumed, 2)


def with_options(comm: hk.Communicator) -> None:
    """Mixed precision, gradients that are added up before they are sent, a divide factor, and infinite gradients."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16))
    hk.torch.compress_fsdp(half, "ok-topk(density=1.0)")
    wanted = backward(sharded(), comm.rank, 0)
    for name, each in backward(half, comm.rank, 0, torch.bfloat16).items():
        torch.testing.assert_close(each, wanted[name], rtol=0.2, atol=0.02)

    plain, ours = sharded(), sharded()
    hk.torch.compress_fsdp(ours, "ok-topk(density=1.0)", nonfinite="pass")
    for model in (plain, ours):
        model.set_requires_gradient_sync(False)
        model(batch(comm.rank, 1)).square().mean().backward()
        model.set_requires_gradient_sync(True)
        model(batch(comm.rank, 2)).square().mean().backward()
    for name, each in gradients(plain).items():
        torch.testing.assert_close(gradients(ours)[name], each, rtol=1e-5, atol=1e-6)
    ours.zero_grad()
    (ours(batch(comm.rank, 3)) * (float("inf") if comm.rank else 1.0)).square().mean().backward()
    assert not all(bool(torch.isfinite(each).all()) for each in gradients(ours).values())

    ours.set_gradient_divide_factor(3.0)
    with raises(hk.UnsupportedCall, names=("set_gradient_divide_factor",)):
        ours(batch(comm.rank, 3)).square().mean().backward()


def test_options_of_fsdp() -> None:
    spawned(with_options, 2)


def test_the_interface_is_that_of_torch() -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

    from hocket.torch.compressed_fsdp import _CompressedReduceScatter

    for name in ("__call__", "allocate"):
        theirs, ours = (
            inspect.signature(getattr(each, name)).parameters for each in (ReduceScatter, _CompressedReduceScatter)
        )
        assert list(ours) == list(theirs)
    assert not _CompressedReduceScatter.__abstractmethods__


def wrong(comm: hk.Communicator) -> None:
    model = sharded()
    for given, error, names in (
        (("power-sgd(rank=2)",), hk.InvalidArgument, ("PowerSgd",)),
        (("dgc",), hk.InvalidArgument, ("Dgc",)),
        (("ok-topl",), hk.InvalidArgument, ("ok-topk",)),
        ((3,), hk.InvalidType, ("int",)),
    ):
        with raises(error, names=names):
            hk.torch.compress_fsdp(model, *given)
    with raises(hk.InvalidArgument, names=("torch.distributed.fsdp.fully_shard",)):
        hk.torch.compress_fsdp(net(), "cast")
    with raises(hk.InvalidType, names=("list",)):
        hk.torch.compress_fsdp([model], "cast")
    with raises(hk.InvalidArgument, names=("nonfinite", "'skip'")):
        hk.torch.compress_fsdp(model, "cast", nonfinite="skip")
    with raises(hk.InvalidType, names=("comm", "int")):
        hk.torch.compress_fsdp(model, "cast", comm=3)
    shards = hk.torch.compress_fsdp(model, "cast")
    with raises(hk.InvalidArgument, names=("compress_fsdp",)):
        hk.torch.compress_fsdp(model, "qsgd")
    backward(model, comm.rank, 0)
    saved = shards.state_dict()
    for change, error, names in (
        ({"world_size": "2"}, hk.InvalidType, ("world_size", "'2'")),
        ({"world_size": 3}, hk.InvalidArgument, ("3", "2")),
        ({"version": 9}, hk.InvalidArgument, ("9", "2")),
        ({"rank": 1 - comm.rank}, hk.InvalidArgument, ("0", "1")),
        ({"rank": None}, hk.InvalidType, ("rank", "None")),
        ({"num_steps": -1}, hk.InvalidArgument, ("num_steps", "-1")),
        ({"modules": 3}, hk.InvalidType, ("modules", "int")),
        ({"modules": {"5": torch.ones(3)}}, hk.InvalidArgument, ("'5'",)),
        ({"modules": {"0": torch.ones(3)}}, hk.InvalidArgument, ("'0'", "3")),
        ({"modules": {"0": torch.full((3,), torch.nan)}}, hk.InvalidArgument, ("'0'",)),
    ):
        with raises(error, names=names):
            shards.load_state_dict({**saved, **change})
    for name, each in shards.state_dict()["modules"].items():
        torch.testing.assert_close(each, saved["modules"][name], rtol=0, atol=0)


def test_bad_input() -> None:
    spawned(wrong, 2)
