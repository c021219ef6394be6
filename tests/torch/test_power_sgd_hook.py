"""PowerSGD as a hook of DistributedDataParallel, against torch's."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import hocket as hk
from hocket.collectives.compressed.power_sgd import orthogonal

from .test_compressed_hook import batch, gradients, net, spawned

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.own_ranks


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
