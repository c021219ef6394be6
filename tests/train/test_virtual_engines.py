"""Steps of engines on virtual ranks, against the formulas of their algorithms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hocket as hk
from hocket.comm import Communicator
from hocket.sim import Hosts, Link
from hocket.train import EngineChoice, TensorSpec, gradient_engines
from hocket.train.engines.engine import SummingEngine
from hocket.train.engines.virtual_step import servers_of, virtual_step

pytestmark = pytest.mark.timeout(100)

BETA_S = 1e-9
TENSORS = [TensorSpec(str(number), (1000, 1000), torch.float32) for number in range(4)]
NBYTES = sum(each.nbytes for each in TENSORS)
SUMMING = [name for name, engine in gradient_engines().items() if issubclass(engine, SummingEngine)]


def _seconds(choice: EngineChoice, num_ranks: int, compute_s: float = 0.0, server_s_per_byte: float = 0.0) -> float:
    ran = hk.simulate(
        virtual_step, num_ranks + servers_of(choice), choice, TENSORS, compute_s, server_s_per_byte,
        fabric=Link(alpha_s=0.0, beta_s=BETA_S), moves_data=False,
    )  # fmt: skip
    return float(max(ran.results[:num_ranks]))


@pytest.mark.parametrize("num_ranks", [2, 4, 16])
@pytest.mark.parametrize("name", [name for name in SUMMING if name != "parameter-server"])
def test_all_reduces_take_two_passes_over_the_link(name: str, num_ranks: int) -> None:
    """2 (P - 1) / P M bytes leave and enter each rank; a cycle of the fused engine is too short to count."""
    bound = 2 * (num_ranks - 1) / num_ranks * NBYTES * BETA_S
    slack = {"pipelined-ring": 1.25, "fused": 1.1}.get(name, 1.01)
    assert bound <= _seconds(EngineChoice(name), num_ranks) * (1 + 1e-9) <= slack * bound


@pytest.mark.parametrize("num_servers", [1, 2, 4])
@pytest.mark.parametrize("num_ranks", [2, 8])
def test_all_gradients_pass_the_servers_links(num_ranks: int, num_servers: int) -> None:
    """W M / S bytes enter each of S servers, and as many leave it; M bytes leave a rank, and M enter it."""
    choice = EngineChoice("parameter-server", {"num_servers": num_servers})
    one_way_s = max(num_ranks / num_servers, 1) * NBYTES * BETA_S
    assert one_way_s <= _seconds(choice, num_ranks) <= 1.3 * 2 * one_way_s


def test_servers_take_as_long_as_they_are_said_to() -> None:
    """A server that is much slower than its link works all the time."""
    found = _seconds(EngineChoice("parameter-server"), 4, server_s_per_byte=100 * BETA_S)
    assert found == pytest.approx(2 * 4 * NBYTES * 100 * BETA_S, rel=0.02)


@pytest.mark.parametrize("name", SUMMING)
def test_computation_hides_the_exchange(name: str) -> None:
    """Where the computation is long, only the exchange of the tensor that is ready last is left behind it."""
    choice = EngineChoice(
        name, {"bucket_nbytes": TENSORS[0].nbytes} if name in ("compressed", "ddp", "pipelined-ring") else {}
    )
    exchange_s, compute_s = _seconds(choice, 4), 1.0
    with_compute_s = _seconds(choice, 4, compute_s)
    assert compute_s < with_compute_s < compute_s + 0.6 * exchange_s


def _sums(comm: Communicator, name: str) -> list[np.ndarray]:
    engine = EngineChoice(name).make(comm, TENSORS[:2], exact=False, timeout_s=30.0)
    found = []
    for step in range(2):
        tensors = [torch.full((1000, 1000), float(comm.rank + step)) for _ in range(2)]
        for number in (1, 0):
            engine.start(number, tensors[number])
        engine.finish()
        found += [np.unique(each.numpy()) for each in tensors]
    engine.close()
    return found


@pytest.mark.parametrize("name", [name for name in SUMMING if name != "parameter-server"])
@pytest.mark.parametrize("fabric", [Link.of(5, 1), Hosts(Link.of(1, 10), Link.of(5, 1), 3)], ids=["links", "hosts"])
def test_virtual_ranks_sum_as_real_ones(name: str, fabric: Link | Hosts) -> None:
    for of_rank in hk.simulate(_sums, 3, name, fabric=fabric).results:
        assert [each.tolist() for each in of_rank] == [[3.0], [3.0], [6.0], [6.0]]
