"""Gradient engines: sums, gradients and losses against torch's own and those of one process; bad input."""

from __future__ import annotations

import inspect
import itertools
import math
from collections import deque
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import nn

import hocket as hk
from hocket.comm import Communicator
from hocket.comm.steps import wait_in_turn
from hocket.errors import BackendUnavailable, InvalidArgument, InvalidModel, InvalidState, InvalidType
from hocket.train import EngineChoice, GradientExchange, TensorSpec, fit, gradient_engines
from hocket.train.engines.buckets import plan_buckets
from hocket.train.engines.pipelined_ring import PipelinedAllReduce, arrivals
from hocket.train.engines.servers.shards import ParcelPlan, assign

from ..load import scaled
from ..naming import assert_names, raises
from ..tier import full
from .engine_ranks import (
    SUMMING,
    TENSORS,
    UPDATING,
    all_sums,
    broken_off,
    exchanged,
    fitted,
    network,
    one_by_one,
    samples,
    updated,
)

pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(200)


def test_no_engine_is_forgotten() -> None:
    assert {*SUMMING, *UPDATING} == gradient_engines().keys()


def test_sums_are_those_of_torch_whatever_is_ready_first() -> None:
    for of_rank in hk.spawn(all_sums, 3, timeout=180):
        assert of_rank and {case: wrong for case, wrong in of_rank.items() if wrong} == {}


@lru_cache
def exchanges() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hk.spawn(exchanged, 2, timeout=150)
    return found


@pytest.mark.parametrize("name", SUMMING)
def test_gradients_are_those_of_distributed_data_parallel(name: str) -> None:
    for of_rank in exchanges():
        wanted, found = of_rank["torch"], of_rank[name]
        for parameter, gradient in wanted.items():
            # torch gives a parameter that no rank uses a gradient of zeros, or none.
            if gradient is None or not any(gradient):
                assert not any(found[parameter] or [0.0]), parameter
            else:
                assert found[parameter] == pytest.approx(gradient, rel=1e-4, abs=1e-6), parameter


@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=full), 4])
def test_losses_of_fit_are_those_of_one_process(num_ranks: int) -> None:
    for of_rank in hk.spawn(fitted, num_ranks, timeout=180):
        wanted = of_rank.pop("one process")
        for name in SUMMING:
            assert of_rank[name] == pytest.approx(wanted, rel=1e-5), name
        for name in ("ddp", "fused", "parameter-server"):  # all exact
            assert of_rank[name] == of_rank["mix"], name
        for name in UPDATING:
            assert of_rank[name][-1] < of_rank[name][0] and of_rank[name][0] == wanted[0], name


def test_servers_that_update() -> None:
    of_ranks = hk.spawn(updated, 2, timeout=150)
    for name, (before, after, total) in of_ranks[0].items():
        assert after < before / 2, name
        assert of_ranks[1][name][2] == total, name  # at the end all ranks have the same parameters
    without_backup = of_ranks[0]["parameter-server-backup {'num_backups': 0}"]
    assert without_backup[2] == pytest.approx(one_by_one(), rel=1e-5)


@pytest.mark.parametrize("name", UPDATING)
def test_an_error_ends_a_training_with_servers_at_once(name: str) -> None:
    for text, seconds in hk.spawn(broken_off, 2, name, timeout=150):
        assert text == "stumbled"
        assert seconds < scaled(30)


class LateAdder:
    """Adds as late as it may, as a device's queue could, and knows what happened before."""

    def __init__(self) -> None:
        self.queue: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self.num_done = 0
        self.most_in_flight = 0

    def add(self, into: torch.Tensor, other: torch.Tensor) -> int:
        self.queue.append((into, other))
        self.most_in_flight = max(self.most_in_flight, len(self.queue))
        return self.num_done + len(self.queue)

    def wait(self, token: int) -> None:
        while self.num_done < token:
            into, other = self.queue.popleft()
            into += other
            self.num_done += 1


def _by_late_adder(comm: Communicator) -> list[tuple[bool, int]]:
    found = []
    for numel, chunk_nbytes, depth in (
        (1, 4, 1),
        (1000, 64, 1),
        (1000, 64, 4),
        (4099, 1 << 20, 3),
        (7, 8, 2),
        (50, 8, 10**9),
        (50, 1 << 70, 3),
    ):
        adder = LateAdder()
        ring = PipelinedAllReduce(comm.dup(), adder, chunk_nbytes, depth, None, 60.0)
        for _ in range(3):
            array = torch.arange(numel, dtype=torch.float32) + comm.rank
            wait_in_turn(ring.steps(array), 60.0, lambda _: None)
            right = comm.size * torch.arange(numel, dtype=torch.float32) + comm.size * (comm.size - 1) / 2
            found.append((torch.equal(array, right), adder.most_in_flight))
    return found


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_a_ring_in_chunks_waits_for_late_additions(num_ranks: int) -> None:
    for of_rank in hk.spawn(_by_late_adder, num_ranks, timeout=100):
        assert all(is_right for is_right, _ in of_rank)
        assert max(most for _, most in of_rank) > 1  # a chunk arrived while another was added


def test_every_chunk_arrives_in_both_phases() -> None:
    for size, numel, most in ((2, 10, 3), (5, 101, 7), (3, 2, 10), (4, 64, 1)):
        for rank in range(size):
            coming = arrivals(numel, rank, size, most)
            for is_added in (True, False):
                elements = [e for each in coming if each.is_added == is_added for e in range(each.begin, each.end)]
                assert len(elements) == len(set(elements))
                bounds = [numel * each // size for each in range(size + 1)]
                sizes = [after - before for before, after in itertools.pairwise(bounds)]
                assert len(elements) in {numel - each for each in sizes}


def test_servers_have_about_the_same_bytes() -> None:
    sizes = [2359296, 1048576, 2048000, 512, 64, *[36864] * 20, *[64] * 40]
    tensors = [TensorSpec(str(number), (size,), torch.float32) for number, size in enumerate(sizes)]
    servers = assign(tensors, 3)
    loads = [sum(size for size, server in zip(sizes, servers, strict=True) if server == each) for each in range(3)]
    assert max(loads) <= max(max(sizes), sum(sizes) / 3 * 1.1)


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("limit", [1, 7, 100, 1 << 20])
def test_messages_have_every_element_once(limit: int, cuts: bool) -> None:
    tensors = [TensorSpec("some", (30, 5), torch.float32), *TENSORS[1:]]
    plan = ParcelPlan(tensors, 4, limit, cuts=cuts)
    found: list[list[tuple[int, int]]] = [[] for _ in tensors]
    for number, parcel in enumerate(plan.parcels):
        assert len({tensors[piece.tensor].dtype for piece in parcel.pieces}) == 1
        assert not cuts or plan.numel(number) * plan.dtype(number).itemsize <= max(limit, plan.dtype(number).itemsize)
        for piece in parcel.pieces:
            assert number in plan.of_tensor[piece.tensor]
            found[piece.tensor].append((piece.begin, piece.end))
    for spec, ranges in zip(tensors, found, strict=True):
        ends = [0, *(end for _, end in sorted(ranges))]
        assert [begin for begin, _ in sorted(ranges)] == ends[:-1] and ends[-1] == spec.numel
        assert cuts or len(ranges) <= 1


def test_buckets_have_every_tensor_once() -> None:
    for limits in ([1], [100, 1000], [1 << 30]):
        buckets = plan_buckets(TENSORS, limits)
        assert sorted(number for bucket in buckets for number in bucket) == list(range(len(TENSORS)))
        assert all(len({TENSORS[number].dtype for number in bucket}) == 1 for bucket in buckets)


@pytest.mark.parametrize("name", sorted(gradient_engines()))
def test_every_option_is_checked(name: str) -> None:
    engine = gradient_engines()[name]
    common = {"comm", "tensors", "exact", "timeout_s", "parameters", "optimizer"}
    options = [each for each in inspect.signature(engine).parameters if each not in common]
    model = network()
    alone = {"num_backups": 0} if "num_backups" in options else {}  # there is one rank
    with hk.init() as comm:
        for option in options:
            if option in ("backend", "payload"):
                with raises(BackendUnavailable, names=("'gloo'",)):
                    _exchange(model, comm, name, **{option: "gloo"})
                continue
            for value in ("many", -1, 2.5 if option != "cycle_ms" else 1e9, math.nan, None):
                if (option, value) == ("compressor", None):  # summed as they are
                    continue
                with raises(InvalidArgument, names=(option,)):
                    _exchange(model, comm, name, **{**alone, option: value})
        with raises(InvalidArgument, names=("num_serverz",)):
            _exchange(model, comm, name, num_serverz=2)


def _exchange(model: nn.Module, comm: Communicator, name: str, **options: Any) -> GradientExchange:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if isinstance(model, nn.Module) else None
    return GradientExchange(model, comm, name, optimizer=optimizer, **options)


def test_bad_input_is_refused() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hk.init() as comm:
        with raises(
            InvalidArgument,
            names=(
                "'rign'",
                "'ring'",
            ),
        ):
            GradientExchange(model, comm, "rign")
        with raises(
            InvalidArgument,
            names=(
                "'ring'",
                "exact=True",
            ),
        ):
            GradientExchange(model, comm, "ring", exact=True)
        with raises(
            InvalidArgument,
            names=(
                "'parameter-server-async'",
                "optimizer=",
            ),
        ):
            GradientExchange(model, comm, "parameter-server-async")
        with raises(InvalidArgument, names=("'fused cycle_ms=5'", "'fused'", "engine_options=")):
            GradientExchange(model, comm, "fused cycle_ms=5")
        with raises(InvalidType, names=("engine", "dict")):
            GradientExchange(model, comm, {"engine": "ring"})  # type: ignore[arg-type]
        with raises(InvalidType, names=("exact", "'yes'")):
            GradientExchange(model, comm, exact="yes")  # type: ignore[arg-type]
        with raises(InvalidType, names=("comm", "NoneType")):
            GradientExchange(model, None)  # type: ignore[arg-type]
        for wrong in ("num_servers=2", [1], []):
            with raises(InvalidType, names=('{"num_servers": 2}', type(wrong).__name__)):
                fit(
                    model,
                    samples(),
                    loss=nn.functional.cross_entropy,
                    optimizer=optimizer,
                    engine_options=wrong,
                    comm=comm,
                )  # type: ignore[arg-type]
        with raises(InvalidType, names=("float",)):
            GradientExchange(model, comm, "parameter-server-async", optimizer=0.1)  # type: ignore[arg-type]
        with raises(InvalidType, names=("list",)):
            GradientExchange([model], comm)  # type: ignore[arg-type]
        with raises(InvalidModel, names=("Linear",)):
            GradientExchange(nn.Linear(2, 2).requires_grad_(False), comm)
        with raises(InvalidModel, names=("sparse=False",)):
            GradientExchange(nn.Embedding(4, 2, sparse=True), comm)
        with raises(
            InvalidArgument,
            names=(
                "num_servers",
                "7",
                "6",
            ),
        ):
            GradientExchange(model, comm, "parameter-server-async", optimizer=optimizer, num_servers=7)
        with raises(
            InvalidArgument,
            names=(
                "num_backups",
                "1",
            ),
        ):
            GradientExchange(model, comm, "parameter-server-backup", optimizer=optimizer, num_backups=1)
        with raises(
            InvalidArgument,
            names=(
                "ports",
                "2",
                "1",
            ),
        ):
            GradientExchange(model, comm, "parameter-server", num_servers=2, ports=(4000,))
        with raises(
            InvalidArgument,
            names=("SGD", "4"),
        ):
            other = torch.optim.SGD(model[0].parameters(), lr=0.1)
            GradientExchange(model, comm, "parameter-server-async", optimizer=other)
        with raises(InvalidArgument, names=("max_gradient_norm", "'parameter-server-async'")):
            fit(
                model,
                samples(),
                loss=nn.functional.cross_entropy,
                optimizer=optimizer,
                strategy="data",
                engine="parameter-server-async",
                max_gradient_norm=1.0,
                comm=comm,
                show_progress=False,
            )


def test_a_backward_pass_that_failed_ends_the_exchange() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            raise ArithmeticError

    model = network()
    x, y = samples()
    with hk.init() as comm, GradientExchange(model, comm, "mix"):
        with pytest.raises(ArithmeticError):
            nn.functional.cross_entropy(model[2:](Fails.apply(model[:2](x))), y).backward()
        with raises(InvalidState):
            nn.functional.cross_entropy(model(x), y).backward()


def test_the_loop_is_the_ranks_own_again_after_close() -> None:
    model = network()
    x, y = samples()
    with hk.init() as comm:
        exchange = GradientExchange(model, comm, "mix")
        exchange.close()
        exchange.close()
        nn.functional.cross_entropy(model(x), y).backward()
        assert model[0].weight.grad is not None


def _differing(comm: Communicator, what: str) -> tuple[str, str]:
    from .engine_ranks import refusal

    model = network() if what != "model" or comm.rank == 0 else nn.Linear(2, 2)
    name = "fused" if what != "engine" or comm.rank == 0 else "ring"
    options = {} if what != "option" else {"fusion_nbytes": 1000 + comm.rank}
    return refusal(lambda: GradientExchange(model, comm, name, **options))


@pytest.mark.parametrize(("what", "named"), [("engine", "'ring'"), ("option", "1001"), ("model", "rank 1")])
def test_ranks_that_differ_are_told(what: str, named: str) -> None:
    for kind, text in hk.spawn(_differing, 2, what, timeout=60):
        assert kind == "InvalidArgument"
        assert_names(text, named)


def test_choices_are_equal_by_name_and_options() -> None:
    assert EngineChoice("ring") == EngineChoice("ring", {}) != EngineChoice("mix")
