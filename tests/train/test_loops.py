"""Every feature of a training loop in plain torch has the same losses and weights, or is refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

import hocket as hk
from hocket.train import AverageWeights, Callback, LearningRate, fit

from ..naming import raises
from ..tier import sample
from .training import BATCH, SAMPLES, data, model

pytestmark = pytest.mark.timeout(100)
EPOCHS = 3
NUM_STEPS = EPOCHS * -(-SAMPLES // BATCH)
Lines = dict[str, Any]


def batches(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches that hocket makes from arrays."""
    x, y = data()
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
    for chosen in order.split(BATCH):
        yield x[chosen], y[chosen]


SCHEDULERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "StepLR by epoch": ("epoch", lambda it: torch.optim.lr_scheduler.StepLR(it, 1, 0.5)),
    "OneCycleLR by step": ("step", lambda it: torch.optim.lr_scheduler.OneCycleLR(it, 0.1, total_steps=NUM_STEPS)),
    "warm-up, then cosine": (
        "step",
        lambda it: torch.optim.lr_scheduler.SequentialLR(
            it,
            [
                torch.optim.lr_scheduler.LinearLR(it, 0.1, total_iters=4),
                torch.optim.lr_scheduler.CosineAnnealingLR(it, NUM_STEPS - 4),
            ],
            [4],
        ),
    ),
    "ReduceLROnPlateau": ("plateau", lambda it: torch.optim.lr_scheduler.ReduceLROnPlateau(it, patience=0)),
    "CosineAnnealingWarmRestarts": ("step", lambda it: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(it, 3)),
    "LambdaLR": ("epoch", lambda it: torch.optim.lr_scheduler.LambdaLR(it, lambda epoch: 0.9**epoch)),
}


def plain_schedule(name: str) -> Lines:
    by, make = SCHEDULERS[name]
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    losses, rates = [], []
    for epoch in range(EPOCHS):
        total = 0.0
        for x, y in batches(epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            rates.append(optimizer.param_groups[0]["lr"])
            total += loss.item() * len(x)
            if by == "step":
                scheduler.step()
        if by == "epoch":
            scheduler.step()
        elif by == "plateau":
            scheduler.step(total / SAMPLES)
    return {"losses": losses, "rates": rates, "state": network.state_dict()}


class Rates(Callback):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.rates: list[float] = []

    def on_batch_end(self, trainer: Any, step: int, logs: Any) -> None:
        self.rates.append(self._optimizer.param_groups[0]["lr"])


def run_schedule(comm: hk.Communicator, name: str) -> Lines:
    by, make = SCHEDULERS[name]
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    rates = Rates(optimizer)
    given = {"by": "epoch", "monitor": "loss"} if by == "plateau" else {"by": by}
    history = train(comm, network, optimizer, [rates, LearningRate(make(optimizer), **given)])  # type: ignore[arg-type]
    return {"losses": history.batch_losses, "rates": rates.rates, "state": network.state_dict()}


def train(comm: hk.Communicator, network: nn.Module, optimizer: Any, callbacks: list[Callback], **options: Any) -> Any:
    torch.set_num_threads(1)
    given = options.pop("data", None) or data()
    options = {"loss": F.cross_entropy, "batch_size": BATCH, "epochs": EPOCHS, **options}
    return fit(
        network, given, optimizer=optimizer, callbacks=callbacks, comm=comm, timeout=60, show_progress=False, **options
    )


def assert_same(seen: Lines, wanted: Lines) -> None:
    for name in wanted:
        torch.testing.assert_close(seen[name], wanted[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sample(list(SCHEDULERS), 3))
def test_schedules_of_the_learning_rate(name: str) -> None:
    wanted = plain_schedule(name)
    for seen in hk.spawn(run_schedule, 2, name, timeout=80):
        assert_same(seen, wanted)


def loader(kind: str) -> DataLoader[Any]:
    dataset = TensorDataset(*data())
    generator = torch.Generator().manual_seed(5)
    if kind == "shuffle":
        return DataLoader(dataset, BATCH, shuffle=True, generator=generator)
    if kind == "weighted":
        weights = torch.arange(1.0, SAMPLES + 1)
        return DataLoader(dataset, BATCH, sampler=WeightedRandomSampler(weights.tolist(), 30, generator=generator))
    if kind == "batch sampler":
        return DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset, generator=generator), 7, True))
    return DataLoader(dataset, BATCH, drop_last=True, num_workers=1)


LOADERS = ("shuffle", "weighted", "batch sampler", "in order, by a worker")


def plain_loader(kind: str) -> Lines:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    batches_of = loader(kind)
    for _ in range(EPOCHS):
        for x, y in batches_of:
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "state": network.state_dict()}


def run_loader(comm: hk.Communicator, kind: str) -> Lines:
    network = model()
    history = train(comm, network, torch.optim.SGD(network.parameters(), lr=0.1), [], data=loader(kind))
    return {"losses": history.batch_losses, "state": network.state_dict()}


@pytest.mark.parametrize("kind", sample(LOADERS, 2))
def test_samplers(kind: str) -> None:
    wanted = plain_loader(kind)
    for seen in hk.spawn(run_loader, 2, kind, timeout=80):
        assert_same(seen, wanted)


def plain_accumulation(num_batches: int) -> Lines:
    """Train on gradients of several batches before each step, which equals micro-batches of one batch."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            optimizer.zero_grad()
            for part_x, part_y in zip(x.chunk(num_batches), y.chunk(num_batches), strict=True):
                loss = F.cross_entropy(network(part_x), part_y) * len(part_x) / len(x)
                loss.backward()
            optimizer.step()
    return {"state": network.state_dict()}


def run_accumulation(comm: hk.Communicator, num_batches: int) -> Lines:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    train(comm, network, optimizer, [], num_micro_batches=num_batches)
    return {"state": network.state_dict()}


def test_accumulated_gradients_are_those_of_micro_batches() -> None:
    for seen in hk.spawn(run_accumulation, 2, 3, timeout=80):
        assert_same(seen, plain_accumulation(3))


def with_norm() -> nn.Sequential:
    layers = list(model())
    return nn.Sequential(*layers[:2], nn.BatchNorm1d(16, dtype=torch.float64), *layers[2:])


def averaged_of(network: nn.Module, use_buffers: bool) -> AveragedModel:
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)


def plain_average(by: str, use_buffers: bool) -> Lines:
    network = with_norm()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    averaged = averaged_of(network, use_buffers)
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
            if by == "step":
                averaged.update_parameters(network)
        if by == "epoch" and epoch >= 1:
            averaged.update_parameters(network)
    return {"averaged": averaged.state_dict(), "state": network.state_dict()}


def run_average(comm: hk.Communicator, by: str, use_buffers: bool, strategy: str) -> Lines:
    network = with_norm()
    averaged = averaged_of(network, use_buffers)
    average = AverageWeights(averaged, by, first=0 if by == "step" else 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    train(comm, network, optimizer, [average], num_micro_batches=1, strategy=strategy)
    return {"averaged": averaged.state_dict(), "state": network.state_dict()}


@pytest.mark.parametrize(("by", "use_buffers"), [("step", False), ("step", True), ("epoch", False)])
def test_averages_of_weights(by: str, use_buffers: bool) -> None:
    for seen in hk.spawn(run_average, 2, by, use_buffers, "model", timeout=80):
        assert_same(seen, plain_average(by, use_buffers))


def several(network: nn.Sequential) -> list[torch.optim.Optimizer]:
    weights = [each for each in network.parameters() if each.dim() > 1]
    others = [each for each in network.parameters() if each.dim() == 1]
    return [torch.optim.SGD(weights, lr=0.1, momentum=0.9), torch.optim.AdamW(others, lr=0.01)]


def plain_several() -> Lines:
    network = model()
    optimizers = several(network)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in optimizers]
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            for each in optimizers:
                each.zero_grad()
            F.cross_entropy(network(x), y).backward()
            for each in optimizers:
                each.step()
        for scheduler in schedulers:
            scheduler.step()
    return {"state": network.state_dict()}


def run_several(comm: hk.Communicator, folder: str) -> Lines:
    network = model()
    optimizers = several(network)

    def callbacks() -> list[Callback]:
        return [LearningRate(torch.optim.lr_scheduler.StepLR(each, 1, 0.5)) for each in optimizers]

    class Save(Callback):
        def on_epoch_end(self, trainer: Any, epoch: int, logs: Any) -> None:
            if epoch == 0:
                trainer.save(f"{folder}/after-0.pt")

    train(comm, network, optimizers, [*callbacks(), Save()])
    whole = copy.deepcopy(network.state_dict())
    network = model()
    optimizers = several(network)  # again from the first epoch on, in another split
    train(comm, network, optimizers, [*callbacks(), Save()], resume=f"{folder}/after-0.pt", strategy="data")
    return {"state": whole, "resumed": network.state_dict()}


def test_several_optimizers(tmp_path: Any) -> None:
    wanted = plain_several()
    for seen in hk.spawn(run_several, 2, str(tmp_path), timeout=80):
        assert_same(seen, {"state": wanted["state"], "resumed": wanted["state"]})


class Overflowing(nn.Module):
    """A loss whose gradient is infinite once, in step 4, on the rank that has the last stage."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        loss = F.cross_entropy(output, target)
        return loss * torch.tensor(1e300).exp() if self.num_calls == 4 else loss


def scaler_of() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)


def plain_scaling() -> Lines:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    scaler, loss_of = scaler_of(), Overflowing()
    for epoch in range(EPOCHS):
        for x, y in batches(epoch):
            optimizer.zero_grad()
            scaler.scale(loss_of(network(x), y)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
    return {"state": network.state_dict(), "scaler": scaler.state_dict()}


def run_scaling(comm: hk.Communicator) -> Lines:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    scaler = scaler_of()
    options = {"loss": Overflowing(), "num_micro_batches": 1, "max_gradient_norm": 0.5, "scaler": scaler}
    train(comm, network, optimizer, [], **options)
    return {"state": network.state_dict(), "scaler": scaler.state_dict()}


def test_scaled_losses_and_a_step_whose_gradients_overflow() -> None:
    wanted = plain_scaling()
    assert wanted["scaler"]["scale"] != 1024.0
    for seen in hk.spawn(run_scaling, 2, timeout=80):
        assert seen["scaler"] == wanted["scaler"]
        assert_same({"state": seen["state"]}, {"state": wanted["state"]})


def refused(comm: hk.Communicator, what: str) -> str:
    network = model()
    weights = [each for each in network.parameters() if each.dim() > 1]
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.1)
    callbacks: list[Callback] = []
    options: dict[str, Any] = {}
    if what == "LBFGS":
        optimizer = torch.optim.LBFGS(network.parameters())
    elif what == "twice":
        optimizer = [optimizer, torch.optim.Adam(weights)]
    elif what == "too few":
        optimizer = [torch.optim.SGD(weights[:1], lr=0.1), torch.optim.Adam(weights[1:])]
    elif what == "none":
        optimizer = []
    elif what == "sampler":
        dataset = TensorDataset(*data())
        options["data"] = DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, comm.size, comm.rank))
    elif what == "scaler":
        options["scaler"] = 1024.0
    elif what == "another model":
        callbacks = [AverageWeights(AveragedModel(nn.Linear(2, 2)))]
    train(comm, network, optimizer, callbacks, **options)
    return "trained"


@pytest.mark.parametrize(
    ("what", "kind", "names"),
    [
        ("LBFGS", hk.InvalidArgument, ("LBFGS", "closure")),
        ("twice", hk.InvalidArgument, ("'0.weight'",)),
        ("too few", hk.InvalidArgument, ("SGD", "Adam", "'0.bias'")),
        ("none", hk.InvalidType, ("optimizer",)),
        ("sampler", hk.InvalidArgument, ("DistributedSampler", "2", "shuffle=True")),
        ("scaler", hk.InvalidType, ("GradScaler", "float")),
        ("another model", hk.InvalidArgument, ("averaged",)),
    ],
)
def test_what_cannot_work_is_refused_by_name(what: str, kind: type[Exception], names: tuple[str, ...]) -> None:
    with raises(kind, names=names):
        hk.spawn(refused, 2, what, timeout=80)


@pytest.mark.parametrize(
    ("call", "kind", "names"),
    [
        (lambda: AverageWeights(nn.Linear(1, 1)), hk.InvalidType, ("AveragedModel", "Linear")),  # type: ignore[arg-type]
        (lambda: AverageWeights(AveragedModel(nn.Linear(1, 1)), "day"), hk.InvalidArgument, ("by", "'day'")),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], kind: type[Exception], names: tuple[str, ...]) -> None:
    with raises(kind, names=names):
        call()
