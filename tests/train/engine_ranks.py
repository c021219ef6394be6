"""What the ranks of the tests of gradient engines do."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.train import Callback, EngineChoice, GradientExchange, TensorSpec, fit, gradient_engines
from hocket.train.engines.parameter_server import ParameterServer

TENSORS = [
    TensorSpec("large", (600, 500), torch.float32),
    TensorSpec("of another type", (7,), torch.float64),
    TensorSpec("half", (3, 3), torch.bfloat16),
    TensorSpec("a number", (), torch.float32),
    TensorSpec("nothing", (0,), torch.float32),
    *(TensorSpec(f"small {number}", (number + 1,), torch.float32) for number in range(20)),
]
SUMMING = ("compressed", "ddp", "fused", "mix", "parameter-server", "pipelined-ring", "ring")
UPDATING = ("parameter-server-async", "parameter-server-backup")


def random_order(generator: torch.Generator) -> list[int]:
    order: list[int] = torch.randperm(len(TENSORS), generator=generator).tolist()
    return order


def sums(comm: Communicator, name: str, options: dict[str, Any], exact: bool) -> list[str]:
    """Sum tensors that are ready in another order on each rank; return those that differ from the sum in rank order:
    in a bit if `exact`, else by more than rounding."""
    generator = torch.Generator().manual_seed(comm.rank)
    wrong = []
    engine = EngineChoice(name, options).make(comm, TENSORS, exact=exact, timeout_s=60.0)
    try:
        for step in range(3):
            own = [torch.randn(spec.shape, generator=generator).to(spec.dtype) for spec in TENSORS]
            of_ranks = comm.all_gather_object(own)
            for number in random_order(generator):
                engine.start(number, own[number])
            engine.finish()
            for number, found in enumerate(own):
                right = of_ranks[0][number].clone()
                for other in of_ranks[1:]:
                    right += other[number]
                tolerance = 0.05 if found.dtype == torch.bfloat16 else 1e-5
                if not (torch.equal(found, right) if exact else torch.allclose(found, right, atol=tolerance)):
                    wrong.append(f"{TENSORS[number].name} in step {step}")
    finally:
        engine.close()
    return wrong


def all_sums(comm: Communicator) -> dict[str, list[str]]:
    """Return what is wrong, for each engine with and without an order of sums and other options."""
    cases: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in SUMMING]
    cases += [
        ("ddp", {"bucket_nbytes": 100}),
        ("mix", {"bucket_nbytes": 1}),
        ("fused", {"fusion_nbytes": 0}),
        ("fused", {"fusion_nbytes": 64, "cycle_ms": 0}),
        ("parameter-server", {"num_servers": 2, "message_nbytes": 1000}),
        ("parameter-server", {"num_servers": 2, "payload": "shm"}),
        ("pipelined-ring", {"chunk_nbytes": 50_000, "bucket_nbytes": 100000, "depth": 1}),
    ]
    return {
        f"{name} {options} {exact}": sums(comm, name, options, exact)
        for name, options in cases
        for exact in (False, True)
        if (gradient_engines()[name].has_order if exact else name != "parameter-server")  # servers always add in order
    }


class Branches(nn.Module):
    """A model with strides of its own, a weight that is used twice, one that only rank 0 uses, and one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 8, 3).to(memory_format=torch.channels_last)
        self.twice, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.sometimes, self.never = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, is_first: bool) -> torch.Tensor:
        h = self.convolution(x.to(memory_format=torch.channels_last)).relu().mean((2, 3))
        h = self.twice(self.twice(h).relu())
        output: torch.Tensor = self.head(h + self.sometimes(h) if is_first else h)
        return output


def made() -> Branches:
    torch.manual_seed(0)
    return Branches()


def batch(number: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(4, 2, 6, 6, generator=generator), torch.randint(3, (4,), generator=generator)


def train(comm: Communicator, model: nn.Module, exchange: Any = None) -> dict[str, list[float] | None]:
    """Train with an accumulated, a clipped and a plain step; return the last gradients by name."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        if step == 1 and exchange is not None:
            with exchange.no_sync():
                F.cross_entropy(model(batch(7, comm.rank)[0], True), batch(7, comm.rank)[1]).backward()
        x, y = batch(step, comm.rank)
        F.cross_entropy(model(x, comm.rank == 0), y).backward()
        if step == 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    names = {name.removeprefix("module."): each for name, each in model.named_parameters()}
    return {name: None if each.grad is None else each.grad.flatten().tolist() for name, each in names.items()}


def exchanged(comm: Communicator) -> dict[str, Any]:
    """Return the gradients of torch's DistributedDataParallel, and of each engine that sums."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, comm.size, is_master=True, wait_for_workers=False) if comm.rank == 0 else None
    port = comm.broadcast_object(None if store is None else store.port, 0)
    store = store or dist.TCPStore("127.0.0.1", port, comm.size, is_master=False)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size)
    try:
        parallel = nn.parallel.DistributedDataParallel(made(), find_unused_parameters=True)
        found = {"torch": train(comm, parallel, parallel)}
    finally:
        dist.destroy_process_group()
    for name in SUMMING:
        model = made()
        with torch.no_grad():
            model.head.bias += comm.rank  # rank 0's count
        with GradientExchange(model, comm, name) as exchange:
            found[name] = train(comm, model, exchange)
    return found


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(128, 16, generator=torch.Generator().manual_seed(1))
    return x, (x.sum(1) > 0).long()


def fitted(comm: Communicator) -> dict[str, Any]:
    """Return losses of `fit` on one process, and by each engine; exact where its sums have an order."""

    def losses(on: Communicator, name: str, replicas: int, exact: bool, clips: bool = True) -> list[float]:
        model = network()
        return fit(
            model,
            samples(),
            loss=F.cross_entropy,
            optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
            batch_size=32,
            epochs=3,
            strategy="data",
            num_micro_batches=replicas // on.size,
            exact=exact,
            engine=name,
            max_gradient_norm=1.0 if clips else None,
            comm=on,
            show_progress=False,
        ).batch_losses

    found: dict[str, Any] = {"one process": losses(comm.group([comm.rank]), "mix", comm.size, True)}
    for name in SUMMING:
        found[name] = losses(comm, name, comm.size, gradient_engines()[name].has_order)
    for name in UPDATING:
        found[name] = losses(comm, name, comm.size, False, clips=False)
    return found


def updated(comm: Communicator) -> dict[str, Any]:
    """Train by servers that update, with a rate that changes; return the loss before and after, and the sum of all
    parameters."""
    found = {}
    x, y = samples()
    for name, options in (
        ("parameter-server-async", {"num_servers": 2}),
        ("parameter-server-backup", {"num_backups": 1}),
        ("parameter-server-backup", {"num_backups": 0}),
    ):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.1)
        before = F.cross_entropy(model(x), y).item()
        with GradientExchange(model, comm, name, optimizer=optimizer, **options):
            for _ in range(40):
                optimizer.zero_grad()
                F.cross_entropy(model(x[comm.rank :: comm.size]), y[comm.rank :: comm.size]).backward()
                optimizer.step()
                schedule.step()
        total = sum(each.detach().double().sum().item() for each in model.parameters())
        found[f"{name} {options}"] = before, F.cross_entropy(model(x), y).item(), total
    return found


class Stumbles(Callback):
    """Fails after the second step."""

    def on_batch_end(self, trainer: Any, step: int, logs: Any) -> None:
        if step == 2:
            raise ArithmeticError("stumbled")


def broken_off(comm: Communicator, name: str) -> tuple[str, float]:
    """Return the error of a training whose callback fails on all ranks, and the seconds after which it was raised."""
    model = network()
    began_s = time.monotonic()
    try:
        fit(
            model,
            samples(),
            loss=F.cross_entropy,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            batch_size=32,
            strategy="data",
            engine=name,
            callbacks=[Stumbles()],
            comm=comm,
            show_progress=False,
        )
    except ArithmeticError as error:
        return str(error), time.monotonic() - began_s
    return "no error", 0.0


def one_by_one() -> float:
    """Return the sum of all parameters after the training of `updated` in one process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.1)
    x, y = samples()
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    return sum(each.detach().double().sum().item() for each in model.parameters())


def refusal(work: Callable[[], Any]) -> tuple[str, str]:
    """Return the type and the text of the error that a function raises."""
    try:
        work()
    except HocketError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def failing(comm: Communicator, what: str, timeout_s: float) -> tuple[str, str, float, list[int]]:
    """Begin a training with two servers; rank 0 breaks something in the third step.

    Returns:
        The type and text of the error, the seconds after which it was raised, and the servers' processes.
    """
    engine = ParameterServer(comm, TENSORS, exact=False, timeout_s=timeout_s, num_servers=2)
    servers = [each.pid for each in engine.servers]
    began_s = time.monotonic()

    def steps() -> None:
        nonlocal began_s
        for step in range(4):
            if step == 2:
                began_s = time.monotonic()
                if comm.rank == 0 and what == "server killed":
                    os.kill(servers[1], signal.SIGKILL)
                elif comm.rank == 0 and what == "server stopped":
                    os.kill(servers[1], signal.SIGSTOP)
                elif comm.rank == 1 and what == "rank late":
                    comm.recv(torch.zeros(1), 0)
            for number, spec in enumerate(TENSORS):
                engine.start(number, torch.ones(spec.shape, dtype=spec.dtype))
            engine.finish()

    try:
        kind, text = refusal(steps)
    finally:
        if comm.rank == 0 and what == "rank late":
            comm.send(torch.zeros(1), 1)
        engine.close()
    return kind, text, time.monotonic() - began_s, servers
