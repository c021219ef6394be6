"""Training loops with what torch's users do, under an exchange of gradients or in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hocket.comm import Communicator
from hocket.train import GradientExchange, gradient_engines
from hocket.train.engines.engine import SummingEngine
from hocket.train.engines.registry import DEFAULT

SAMPLES = 8
FIRST = 2.5
"""A value that only the first sample of rank 0 has."""
Begin = Callable[[nn.Module], AbstractContextManager[Any]]
Batch = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
Corner = Callable[[Begin, Batch], nn.Module]
CORNERS: dict[str, Corner] = {}
SERVED: list[str] = []
"""Corners of layouts and types, which are other code where elements are sent to servers."""


def has_servers(name: str) -> bool:
    return "server" in name


def summing() -> list[str]:
    return sorted(name for name, each in gradient_engines().items() if issubclass(each, SummingEngine))


def corner(run: Corner) -> Corner:
    CORNERS[run.__name__] = run
    return run


def served(run: Corner) -> Corner:
    SERVED.append(run.__name__)
    return corner(run)


class One:
    """In one process nothing is exchanged."""

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def loop(
    begin: Begin,
    batch: Batch,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    backward: Callable[[int, torch.Tensor], object] = lambda step, loss: loss.backward(),
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    after: Callable[[int], object] = lambda step: None,
    **zero_grad: bool,
) -> nn.Module:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with begin(model):
        for step in range(3):
            optimizer.zero_grad(**zero_grad)
            x, y = batch(step)
            backward(step, F.cross_entropy((forward or model)(x), y))
            after(step)
            optimizer.step()
    return model


@corner
def tied_weights(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    model.insert(2, nn.Linear(8, 8))
    model.insert(3, nn.Linear(8, 8))
    model[3].weight = model[2].weight
    return loop(begin, batch, model)


@corner
def frozen_in_between(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    return loop(begin, batch, model, after=lambda step: model[0].requires_grad_(step == 1))


@corner
def gradients_of_zeros(begin: Begin, batch: Batch) -> nn.Module:
    return loop(begin, batch, perceptron(), set_to_none=False)


@corner
def accumulated(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with begin(model) as exchange:
        for step in range(2):
            optimizer.zero_grad()
            with exchange.no_sync():
                for part in range(2):
                    F.cross_entropy(model(batch(part)[0]), batch(part)[1]).backward()
            F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
            F.cross_entropy(model(batch(3)[0]), batch(3)[1]).backward()  # adds to a mean
            optimizer.step()
    return model


@corner
def scaled_and_clipped(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with begin(model):
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch(step)
            loss = F.cross_entropy(model(x), y)
            # The overflow of rank 0 must let all ranks leave this step out.
            scaler.scale(loss * (float("inf") if step == 1 and bool((x == FIRST).any()) else 1.0)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() == 512.0
    return model


@corner
def several_backward_passes_in_a_step(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, tolerance_change=0.0)
    x, y = batch(0)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with begin(model):
        for _ in range(2):
            optimizer.step(closure)
    return model


@corner
def foreach(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    return loop(begin, batch, model, torch.optim.Adam(model.parameters(), lr=0.01, foreach=True))


@corner
def fused(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    return loop(begin, batch, model, torch.optim.Adam(model.parameters(), lr=0.01, fused=True))


@corner
def compiled(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    return loop(begin, batch, model, forward=torch.compile(model, backend="aot_eager"))


@corner
def wrapped_by_compile(begin: Begin, batch: Batch) -> nn.Module:
    model: Any = torch.compile(perceptron(), backend="eager")
    return loop(begin, batch, model)


@corner
def checkpointed(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    return loop(begin, batch, model, forward=lambda x: model[2](checkpoint(model[:2], x, use_reentrant=False)))


@corner
def reentrant_checkpoints(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()

    def forward(x: torch.Tensor) -> torch.Tensor:
        for part in (model[:2], model[2]):
            x = checkpoint(part, x.requires_grad_(), use_reentrant=True)
        return x

    return loop(begin, batch, model, forward=forward)


@corner
def unused_parameters(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    model.never = nn.Linear(2, 2)
    return loop(begin, batch, model, forward=lambda x: model[2](model[1](model[0](x))))


@corner
def parametrized(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    nn.utils.parametrizations.weight_norm(model[0])
    return loop(begin, batch, model)


@corner
def scheduled(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6)
    return loop(begin, batch, model, optimizer, after=lambda step: scheduler.step() if step else None)


@corner
def group_added_later(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)

    def after(step: int) -> None:
        if step == 1:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})

    return loop(begin, batch, model, optimizer, after=after)


@corner
def graph_used_twice(begin: Begin, batch: Batch) -> nn.Module:
    def backward(step: int, loss: torch.Tensor) -> None:
        loss.backward(retain_graph=True)
        (2 * loss).backward()

    return loop(begin, batch, perceptron(), backward=backward)


@corner
def some_inputs_only(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    return loop(begin, batch, model, backward=lambda step, loss: loss.backward(inputs=[model[0].weight, model[2].bias]))


@corner
def gradient_penalty(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        output: torch.Tensor = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output + slope.square().sum(1, keepdim=True)

    return loop(begin, batch, model, forward=forward)


@corner
def functional(begin: Begin, batch: Batch) -> nn.Module:
    model = perceptron()
    return loop(
        begin, batch, model, forward=lambda x: torch.func.functional_call(model, dict(model.named_parameters()), x)
    )


@corner
def recurrent(begin: Begin, batch: Batch) -> nn.Module:
    torch.manual_seed(0)
    model = nn.LSTM(6, 3, num_layers=2)
    return loop(begin, batch, model, forward=lambda x: model(x[None])[0][0])


@corner
def trained_twice(begin: Begin, batch: Batch) -> nn.Module:
    return loop(begin, batch, loop(begin, batch, perceptron()))


@corner
def two_models_at_once(begin: Begin, batch: Batch) -> nn.Module:
    first, second = perceptron(), perceptron()
    with begin(second):
        optimizer = torch.optim.SGD(second.parameters(), lr=0.1)

        def after(step: int) -> None:
            optimizer.zero_grad()
            F.cross_entropy(second(first(batch(step)[0]).detach().repeat(1, 2)), batch(step)[1]).backward()
            optimizer.step()

        loop(begin, batch, first, after=after)
    return nn.ModuleList([first, second])


class Shapes(nn.Module):
    """Parameters of all shapes and layouts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(1, 4, 2).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(3, 8).t())
        self.number, self.nothing = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(0, 3))
        self.single = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.convolution(x.view(-1, 1, 2, 3)).tanh().flatten(1)
        output: torch.Tensor = h @ self.turned * self.number + self.single + self.nothing.sum()
        return output


@served
def shapes(begin: Begin, batch: Batch) -> nn.Module:
    return loop(begin, batch, Shapes())


class Types(nn.Module):
    """Parameters of some types."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        for dtype in dtypes:
            name = f"of_{str(dtype).removeprefix('torch.')}"
            self.register_parameter(name, nn.Parameter(torch.randn(6, 3).to(dtype)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sums = []
        for each in self.parameters():
            product = x.to(each.dtype) @ each
            sums.append((product.abs() if product.is_complex() else product).float())
        return torch.stack(sums).sum(0)


@served
def types(begin: Begin, batch: Batch) -> nn.Module:
    return loop(begin, batch, Types(torch.float32, torch.float64, torch.complex64, torch.complex128))


@served
def half_types(begin: Begin, batch: Batch) -> nn.Module:
    return loop(begin, batch, Types(torch.bfloat16, torch.float16))


@served
def default_type(begin: Begin, batch: Batch) -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return loop(begin, lambda step: (batch(step)[0].double(), batch(step)[1]), perceptron())
    finally:
        torch.set_default_dtype(before)


def batches(rank: int | None, num_ranks: int) -> Batch:
    """Return a rank's samples of a step, or those of all ranks."""

    def of_step(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(num_ranks * SAMPLES, 6, generator=generator, dtype=torch.float32)
        x[0, 0] = FIRST
        y = torch.randint(3, (num_ranks * SAMPLES,), generator=generator)
        own = slice(None) if rank is None else slice(rank * SAMPLES, (rank + 1) * SAMPLES)
        return x[own], y[own]

    return of_step


def differences(comm: Communicator, is_full: bool) -> dict[str, list[str]]:
    """Return for engines and corners the parameters and gradients that differ from those of one process.

    Args:
        comm: a communicator of all ranks.
        is_full: whether every corner has every engine; if not, it has the default one and another one in turn.
    """
    torch.set_num_threads(1)
    found = {}
    others = [each for each in summing() if each != DEFAULT and not has_servers(each)]
    for number, (name, run) in enumerate(CORNERS.items()):
        wanted = run(lambda model: nullcontext(One()), batches(None, comm.size))
        for engine in summing():
            if has_servers(engine) and name not in SERVED:
                continue
            if engine in others and engine != others[number % len(others)] and not is_full:
                continue

            @contextmanager
            def begin(model: nn.Module, engine: str = engine) -> Iterator[Any]:
                with GradientExchange(model, comm, engine, timeout=20.0) as exchange:
                    yield exchange

            try:
                found[f"{name} {engine}"] = _different(wanted, run(begin, batches(comm.rank, comm.size)))
            except Exception as error:  # both ranks have it, or one has a timeout
                found[f"{name} {engine}"] = [repr(error)]
    return found


def _different(wanted: nn.Module, found: nn.Module) -> list[str]:
    different = []
    pairs = zip(wanted.named_parameters(), found.parameters(), strict=True)
    for (name, right), own in pairs:
        about = 0.03 if right.dtype in (torch.bfloat16, torch.float16) else 1e-5
        if not torch.allclose(right, own, rtol=about, atol=about):
            different.append(name)
        absent = torch.full((), torch.pi, dtype=right.dtype)  # differs from every gradient
        gradients = [absent if each.grad is None else each.grad for each in (right, own)]
        if not torch.allclose(*gradients, rtol=about, atol=about):
            different.append(f"gradient of {name}")
    return different
