"""What torch's users do in a loop: under an exchange of gradients it works as in one process, or is refused by name."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hocket as hk
from hocket.comm import Communicator
from hocket.errors import InvalidArgument, InvalidModel, InvalidState
from hocket.train import GradientExchange, gradient_engines
from hocket.train.engines.servers.optimizers import TorchServedOptimizer
from hocket.train.engines.servers.refused import Refused
from hocket.train.engines.servers.updates import Updates

from .. import tier
from ..load import scaled
from ..naming import assert_names, raises
from .engine_ranks import refusal
from .exchange_corners import CORNERS, differences, perceptron, summing

pytest.importorskip("grpc")
pytestmark = pytest.mark.timeout(200)


@pytest.mark.own_ranks
def test_loops_train_as_in_one_process() -> None:
    for of_rank in hk.spawn(differences, 2, tier.is_full(), timeout=150):
        assert len(of_rank) >= 2 * len(CORNERS)
        assert {case: wrong for case, wrong in of_rank.items() if wrong} == {}


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _sharded() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), init_device_mesh("cpu", (1,))))
    return model


def _inferred() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(2, 2)


def _with_an_expanded_buffer() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.ones(1).expand(3))
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "wrapped": (lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), ("DistributedDataParallel",)),
    "part wrapped": (
        lambda: nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(2, 2))),
        ("0", "DistributedDataParallel"),
    ),
    "sharded": (_sharded, ("weight", "DTensor")),
    "without values": (lambda: nn.Linear(2, 2, device="meta"), ("weight", "'meta'")),
    "without shapes": (lambda: nn.LazyLinear(2), ("weight",)),
    "expanded": (_with_an_expanded_buffer, ("mask", "mask.contiguous")),
    "made for inference": (_inferred, ("weight", "torch.inference_mode")),
}


@pytest.mark.parametrize("what", MODELS)
def test_models_are_refused(what: str, group: None) -> None:
    make, names = MODELS[what]
    model = make()
    with hk.init() as comm, raises(InvalidModel, names=names):
        GradientExchange(model, comm)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), "long", True])
def test_timeouts_are_checked(timeout: Any) -> None:
    with hk.init() as comm, raises(InvalidArgument, names=("timeout", repr(timeout))):
        GradientExchange(perceptron(), comm, timeout=timeout)


def test_nothing_begins_in_inference_mode() -> None:
    with hk.init() as comm, torch.inference_mode(), raises(InvalidState, names=("torch.inference_mode",)):
        GradientExchange(perceptron(), comm)


@pytest.mark.parametrize("name", summing())
def test_a_model_has_one_exchange_at_a_time(name: str) -> None:
    model = perceptron()
    with hk.init() as comm, GradientExchange(model, comm, "mix"), raises(InvalidState):
        GradientExchange(nn.Sequential(model), comm, name)


def _with_graph(model: nn.Module, x: torch.Tensor) -> None:
    model(x).sum().backward(create_graph=True)


def _reentrant(model: Any, x: torch.Tensor) -> None:
    model[2](checkpoint(model[0], x.requires_grad_(), use_reentrant=True)).sum().backward()


def _replaced(model: nn.Module, x: torch.Tensor) -> None:
    model.load_state_dict(
        {name: each.clone() for name, each in model[0].state_dict(prefix="0.").items()}, strict=False, assign=True
    )
    model(x).sum().backward()


def _required_later(model: nn.Module, x: torch.Tensor) -> None:
    model[1].requires_grad_()
    model(x).sum().backward()


def _sparse(model: nn.Module, x: torch.Tensor) -> None:
    F.embedding(torch.tensor([1, 2]), model[0].weight, sparse=True).sum().backward()


def _of_another_type(model: nn.Module, x: torch.Tensor) -> None:
    model[0].weight.grad_dtype = torch.float64
    model[0].weight.grad = torch.zeros(4, 4, dtype=torch.float64)
    model(x).sum().backward()


@pytest.mark.parametrize(
    ("run", "names"),
    [
        pytest.param(_with_graph, ("create_graph=True",), marks=pytest.mark.filterwarnings("ignore:.*create_graph")),
        (_reentrant, ()),
        (_replaced, ("0.weight", "load_state_dict")),
        (_required_later, ("1.weight",)),
        (_sparse, ("0.weight",)),
        (_of_another_type, ("0.weight", "torch.float64", "torch.float32")),
    ],
)
def test_backward_passes_are_refused(run: Callable[[Any, torch.Tensor], None], names: tuple[str, ...]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))
    with hk.init() as comm:
        exchange = GradientExchange(model, comm, "mix")
        kind, text = refusal(lambda: run(model, torch.ones(3, 4)))
        assert kind in ("InvalidState", "InvalidModel"), text
        assert_names(text, *names)
        exchange.close()


def _differing(comm: Communicator, what: str) -> tuple[str, str]:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    if what == "buffers" and comm.rank == 1:
        model[1].register_buffer("more", torch.zeros(3))
    if what == "frozen":
        model[1].weight.requires_grad_(False)
        if comm.rank == 1:
            model[1].weight.data = torch.zeros(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + (comm.rank if what == "optimizer" else 0)))
    name = "parameter-server-async" if what == "optimizer" else "mix"
    return refusal(lambda: GradientExchange(model, comm, name, optimizer=optimizer))


@pytest.mark.parametrize(
    ("what", "names"), [("buffers", ("1.more",)), ("frozen", ("1.weight",)), ("optimizer", ("0.2",))]
)
def test_ranks_that_differ_are_told_before_anything_is_sent(what: str, names: tuple[str, ...]) -> None:
    for kind, text in hk.spawn(_differing, 2, what, timeout=60):
        assert kind == "InvalidArgument", text
        assert_names(text, *names)


OPTIMIZERS = {
    name: each
    for name, each in vars(torch.optim).items()
    if inspect.isclass(each) and issubclass(each, torch.optim.Optimizer) and each is not torch.optim.Optimizer
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_is_applied_by_servers_or_refused(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    parameters = list(model.parameters())
    optimizer = OPTIMIZERS[name](parameters)
    if name in ("LBFGS", "SparseAdam"):
        with hk.init() as comm, raises(InvalidArgument, names=(name,)):
            GradientExchange(model, comm, "parameter-server-async", optimizer=optimizer)
        return
    served = TorchServedOptimizer(optimizer)
    served.check(parameters)
    update = cloudpickle.loads(
        cloudpickle.dumps(served.part({id(each): n for n, each in enumerate(parameters)}, [[0, 1]]))
    )

    async def serve() -> None:
        updates = Updates(1, None, {0: ([0, 1], torch.float32)}, update)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().sum().backward()
            gradients = torch.cat([each.grad.flatten() for each in parameters])
            content = memoryview(b"\1\1" + gradients.numpy().tobytes())
            answer = await updates.add(0, 0, step, content)
            optimizer.step()
            values = torch.cat([each.detach().flatten() for each in parameters])
            assert torch.allclose(torch.frombuffer(bytearray(answer), dtype=torch.float32), values)

    asyncio.run(serve())


def test_steps_that_servers_cannot_take_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with hk.init() as comm, GradientExchange(model, comm, "parameter-server-async", optimizer=optimizer):
        with raises(InvalidState):
            GradientExchange(model, comm, "parameter-server-async", optimizer=optimizer)

        def closure() -> torch.Tensor:
            loss: torch.Tensor = model(torch.tensor([1, 2])).sum()
            loss.backward()
            return loss

        for step in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
            with raises(InvalidState, names=("Adam",)):
                step()
        scaler.scale(model(torch.tensor([1, 2])).sum()).backward()
        with raises(InvalidState, names=("Adam", "fused=True")):
            scaler.step(optimizer)
        del optimizer.grad_scale, optimizer.found_inf  # torch does so after a step without an error
        optimizer.zero_grad()
        F.embedding(torch.tensor([1, 2]), model[0].weight, sparse=True).sum().backward()
        with raises(InvalidModel, names=("0.weight",)):
            optimizer.step()
        optimizer.zero_grad()
        before = model[1].weight.detach().clone()
        closure()
        optimizer.step()  # nothing was sent before
        assert not torch.equal(model[1].weight, before)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        with raises(InvalidState, names=("Adam", "2")):
            optimizer.step()
        optimizer.param_groups.pop()


class Fails(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ArithmeticError("overflow")


def test_an_optimizer_that_fails_on_a_server_is_told_to_all_ranks() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    update = TorchServedOptimizer(Fails([parameter], lr=0.1)).part({id(parameter): 0}, [[0]])
    updates = Updates(3, 2, {0: ([0], torch.float32)}, update)

    async def serve() -> list[Any]:
        calls = [updates.add(rank, 0, 0, memoryview(bytes(1 + 8))) for rank in range(2)]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), scaled(10))

    for each in asyncio.run(serve()):
        assert isinstance(each, Refused)
        assert_names(str(each), "overflow")


def _raising(comm: Communicator, name: str) -> tuple[str, float]:
    """Fail in a loop, while the other rank is elsewhere; return the error, and the seconds until it left the loop."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    began_s = time.monotonic()
    try:
        with GradientExchange(model, comm, name, optimizer=optimizer, timeout=scaled(60)):
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
            began_s = time.monotonic()
            if comm.rank == 1:
                raise ZeroDivisionError
            comm.recv(torch.zeros(1), 1)
    except Exception as error:
        return type(error).__name__, time.monotonic() - began_s
    finally:
        if comm.rank == 1:
            comm.send(torch.zeros(1), 0)
    return "nothing", time.monotonic() - began_s


@pytest.mark.parametrize("name", ["parameter-server", "parameter-server-async"])
def test_an_error_in_a_loop_waits_for_no_other_rank(name: str) -> None:
    kind, seconds = hk.spawn(_raising, 2, name, timeout=120)[1]
    assert kind == "ZeroDivisionError" and seconds < scaled(7)


def _two_exchanges(comm: Communicator, engines: list[str]) -> None:
    """Ranks compute the gradients of two models in one backward pass, in different orders, and not all of them."""
    for name in engines:
        one = nn.ModuleDict({"stem": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
        two = nn.Linear(2, 2)
        with (
            GradientExchange(one, comm, name, timeout=scaled(20)),
            GradientExchange(two, comm, name, timeout=scaled(20)),
        ):
            y = two(one["stem"](torch.ones(1, 2)))
            if comm.rank == 0:
                y = one["head"](y)
            y.sum().backward()
            losses = [one["stem"].weight.sum(), two.weight.sum() * 3]
            (losses[comm.rank] + losses[1 - comm.rank]).backward()
        for each in (*one.parameters(), *two.parameters()):
            rows = comm.all_gather_object(each.grad)
            assert torch.equal(rows[0], rows[1]), name


@pytest.mark.own_ranks
def test_two_exchanges_in_one_backward_pass() -> None:
    hk.spawn(_two_exchanges, 2, summing(), timeout=150)


def _large_halves(comm: Communicator, engines: list[str]) -> None:
    for name in engines:
        model = nn.ParameterList([torch.zeros(3, dtype=torch.float16)])
        with GradientExchange(model, comm, name):
            for _ in range(2):
                model.zero_grad()
                (model[0] * 40_000).sum().backward()
                assert model[0].grad is not None and model[0].grad.tolist() == [40_000.0] * 3, name


@pytest.mark.own_ranks
def test_means_of_halves_whose_sum_is_too_large() -> None:
    hk.spawn(_large_halves, 2, summing(), timeout=100)


def _only_empty_parameters(comm: Communicator) -> None:
    for name in gradient_engines():
        model = nn.ParameterList([torch.zeros(0), torch.zeros(0, 3)])
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        options = {"optimizer": optimizer} if name not in summing() else {}
        with GradientExchange(model, comm, name, **options):
            sum(each.sum() for each in model).backward()  # type: ignore[union-attr]
            optimizer.step()


@pytest.mark.own_ranks
def test_parameters_without_elements() -> None:
    hk.spawn(_only_empty_parameters, 2, timeout=100)


Deviation = Callable[[list[nn.Parameter], int], torch.optim.Optimizer]


def _other_groups(parameters: list[nn.Parameter], rank: int) -> torch.optim.Optimizer:
    first, second = parameters if rank == 0 else parameters[::-1]
    return torch.optim.SGD([{"params": [first], "lr": 1.0}, {"params": [second], "lr": 8.0}])


def _other_state(parameters: list[nn.Parameter], rank: int) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, 1.0, momentum=0.5)
    for each in parameters:
        optimizer.state[each]["momentum_buffer"] = torch.full((3,), 8.0 * (rank + 1))
    return optimizer


def _no_state(parameters: list[nn.Parameter], rank: int) -> torch.optim.Optimizer:
    optimizer = _other_state(parameters, 0)
    if rank == 1:
        optimizer.state.clear()
    return optimizer


def _other_rate(parameters: list[nn.Parameter], rank: int) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1.0 + rank)


def _other_class(parameters: list[nn.Parameter], rank: int) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1.0) if rank == 0 else torch.optim.Adam(parameters, 1.0)


DEVIATIONS: dict[str, tuple[Deviation, tuple[str, ...]]] = {
    "groups": (_other_groups, ("groups_of_the_optimizer", "number 0", "'0'", "'1'", "rank 1")),
    "state": (_other_state, ("state_of_the_optimizer", "momentum_buffer", "0", "rank 1")),
    "no state": (_no_state, ("state_of_the_optimizer", "0", "missing", "rank 1")),
    "rate": (_other_rate, ("settings_of_the_optimizer", "lr", "1.0", "2.0", "rank 1")),
    "class": (_other_class, ("optimizer", "'SGD'", "'Adam'", "rank 1")),
}


def _deviating(comm: Communicator, deviation: Deviation, name: str) -> tuple[str, str]:
    model = nn.ParameterList([torch.zeros(3), torch.zeros(3)])
    optimizer = deviation(list(model.parameters()), comm.rank)
    return refusal(lambda: GradientExchange(model, comm, name, optimizer=optimizer, num_servers=2))


@pytest.mark.parametrize("what", DEVIATIONS)
@pytest.mark.parametrize("name", sorted({*gradient_engines()} - {*summing()}))
def test_optimizers_that_differ_are_refused(name: str, what: str) -> None:
    deviation, names = DEVIATIONS[what]
    for kind, told in hk.spawn(_deviating, 2, deviation, name, timeout=60):
        assert kind == "InvalidArgument" and len(told) < 400
        assert_names(told, *names)


def _another_last_layer(comm: Communicator) -> tuple[str, str]:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(80)), nn.Linear(4, 3 + comm.rank))
    return refusal(lambda: GradientExchange(model, comm))


def test_of_many_parameters_the_one_that_differs_is_named() -> None:
    for kind, told in hk.spawn(_another_last_layer, 2, timeout=60):
        assert kind == "InvalidArgument" and len(told) < 400
        assert_names(told, "number 160", "'80.weight'", "rank 1")


def test_an_optimizer_with_other_parameters() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(5, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
    with hk.init() as comm:
        with raises(InvalidArgument, names=("SGD", "2", "(3, 5)")):
            GradientExchange(model, comm, optimizer=optimizer)
        other.requires_grad_(False)
        GradientExchange(model, comm, optimizer=optimizer).close()
