"""Results of pipelines and of plain torch for models and data where they could easily differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hocket import pipeline
from hocket.comm import Communicator
from hocket.errors import HocketError
from hocket.pipeline import Action, PipelineSchedule, Placement
from hocket.train import (
    Callback,
    Checkpoint,
    EarlyStopping,
    LearningRate,
    MicroBatch,
    PipelineExecutor,
    TorchUpdate,
    Trainer,
    fit,
    graph_of,
    run_epochs,
    source_of,
)

from .corner_models import (
    WIDTH,
    AddedWeights,
    Aside,
    Checkpointed,
    ClampsInput,
    Images,
    Jittered,
    Largest,
    Masked,
    OfBuffer,
    Residual,
    SharedNorm,
    Short,
    Signs,
    Tied,
    Transposed,
    WritesToView,
)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def made(make: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return make()


def gradients_at_all_cuts(comm: Communicator, make: Callable[[], nn.Module], x: torch.Tensor) -> list[str]:
    """Cut a model at all places; return the cuts with gradients or outputs that differ from plain torch's in a bit."""

    def loss(output: Any, target: Any) -> torch.Tensor:
        return (output[0] if isinstance(output, tuple) else output).square().mean()

    plain = made(make)
    outputs = []
    for part in x:
        outputs.append(plain(part))
        (loss(outputs[-1], None) / len(x)).backward()
    wanted = {name: parameter.grad for name, parameter in plain.named_parameters()}
    wrong = []
    for schedule in ("1f1b", "zb-h1"):
        for cut in range(1, len(graph_of(plain).layers)):
            model = made(make)
            graph = graph_of(model)
            split = graph.split([0, cut, len(graph.layers)])
            with PipelineExecutor(pipeline.build(schedule, 2, len(x)), split, comm, loss, exact=True) as executor:
                parts = [MicroBatch({split.batch_inputs[0]: part}, weight=1 / len(x)) for part in x]
                result = executor.step(parts, keeps_outputs=True)
                own = set(split.stages[comm.rank].parameters())
            for name, parameter in model.named_parameters():
                found, right = parameter.grad, wanted[name]
                if name in own and not (found is right is None or torch.equal(found, right)):
                    wrong.append(f"{schedule}, cut at {cut}: {name}")
            for number, output in result.outputs.items():
                both = (each if isinstance(each, tuple) else (each,) for each in (output, outputs[number]))
                if not all(torch.equal(found, right) for found, right in zip(*both, strict=True)):
                    wrong.append(f"{schedule}, cut at {cut}: output {number}")
    return wrong


def two_pipes_on_a_rank(comm: Communicator) -> list[float]:
    """Return gradients of a tied weight: of plain torch, exact, and not exact."""
    order = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
    row = [Action(kind, stage, pipe, 1, pipe) for pipe in (0, 1) for kind, stage in order]
    table = PipelineSchedule("two pipes", Placement(((0, 0), (0, 0))), 2, (tuple(row),))
    x = normal(8, WIDTH)
    plain = made(Tied)
    plain(x).square().mean().backward()
    found = [plain.a.weight.grad.norm().item()]
    for exact in (True, False):
        model = made(Tied)
        alone = comm.group([comm.rank])
        split = graph_of(model).split([0, 1, 2])
        with PipelineExecutor(table, split, alone, lambda output, _: output.square().mean(), exact=exact) as executor:
            executor.step([MicroBatch({"x": part}, None, 0.5) for part in x.split(4)])
        found.append(model.a.weight.grad.norm().item())
    return found


def train(comm: Communicator, model: nn.Module, data: Any, **options: Any) -> Any:
    """Train with two micro-batches of one pipeline and plain gradient descent."""
    given = {
        "loss": F.mse_loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "batch_size": 8,
        "num_micro_batches": 2,
        "shuffle": False,
        "timeout": 30,
        "show_progress": False,
    }
    return fit(model, data, comm=comm, **{**given, **options})


def refusal(work: Callable[[], Any]) -> str:
    """Return the type and text of the error that a function raises."""
    try:
        work()
    except HocketError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__} of another house: {error}"
    return "none"


def chain(*, classes: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, classes))


def plain_losses(model: nn.Module, batches: list[Any], loss: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for x, y in batches:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def weighted(comm: Communicator) -> dict[str, Any]:
    """Return losses and metrics of parts of unequal sizes: hocket's, and those of plain torch."""
    x, y = normal(10, WIDTH), torch.tensor([-100, -100, -100, -100, 1, 2, 0, -100, 1, 2])
    batches = [(x[:8], y[:8]), (x[8:], y[8:])]

    def items(target: torch.Tensor) -> float:
        return float((target != -100).sum())

    def total(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target, reduction="sum")

    found: dict[str, Any] = {}
    for name, loss, options in (
        ("counted", F.cross_entropy, {"weigh": items}),
        ("summed", total, {"loss_is_mean": False}),
    ):
        model = made(lambda: chain(classes=3))
        history = train(
            comm, model, (x, y), loss=loss, num_micro_batches=4, metrics=["accuracy"], validation_data=(x, y), **options
        )
        plain = made(lambda: chain(classes=3))
        losses = plain_losses(plain, batches, loss)
        validation = [loss(plain(each), target).item() for each, target in batches]
        size = [items(target) for _, target in batches] if name == "counted" else [8, 2]
        found[name] = {
            "losses": (history.batch_losses, losses),
            "validation": (
                history.history["val_loss"][0],
                sum(value * each for value, each in zip(validation, size, strict=True)) / sum(size),
            ),
            "accuracy": (history.history["val_accuracy"][0], (plain(x).argmax(1) == y).double().mean().item()),
        }
    model = made(chain)
    history = train(
        comm, model, (x,), loss=lambda output, _: output.square().mean(), validation_data=(x,), batch_size=10
    )
    found["no target"] = history.history["val_loss"][0], model(x).square().mean().item()
    return found


def resumed(comm: Communicator, folder: Path) -> dict[str, Any]:
    """Return trainings that continue from a file: after an epoch, and within one."""
    x, y = normal(16, WIDTH), normal(16, WIDTH).flip(0)

    def go(resume: Path | None = None, more: tuple[Callback, ...] = (), **options: Any) -> tuple[Any, Any]:
        model = made(chain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = LearningRate(torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        given = {"shuffle": True, "batch_size": 4, "optimizer": optimizer, "epochs": 5, "exact": True, **options}
        callbacks = (*more, scheduler, EarlyStopping("loss", patience=1, mode="max"))
        return model, train(comm, model, (x, y), callbacks=callbacks, resume=resume, **given)

    whole, history = go()
    go(more=(Checkpoint(folder / "epoch.pt"),), epochs=1)
    after_epoch, rest = go(folder / "epoch.pt")
    go(more=(Checkpoint(folder / "step.pt"),), max_steps=6)
    after_step, late = go(folder / "step.pt")
    if comm.rank == 0:
        torch.save({"a": 1}, folder / "other.pt")
        (folder / "text.pt").write_bytes(b"hello world")
    comm.barrier()
    return {
        "num_epochs": len(history.epoch),
        "losses": (history.batch_losses[4:], rest.batch_losses, history.batch_losses[6:], late.batch_losses),
        "weights": all(
            torch.equal(a, b) and torch.equal(a, c)
            for a, b, c in zip(whole.parameters(), after_epoch.parameters(), after_step.parameters(), strict=True)
        ),
        "refused": [refusal(lambda name=name: go(folder / name)) for name in ("other.pt", "text.pt")],
    }


def on_plateau(comm: Communicator, x: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return losses with a learning rate that falls with every epoch, of hocket and of plain torch."""

    def made_by(model: nn.Module) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0)

    model = made(chain)
    optimizer, scheduler = made_by(model)
    callback = LearningRate(scheduler, monitor="loss")
    history = train(comm, model, (x, x), optimizer=optimizer, callbacks=[callback], epochs=4)
    plain = made(chain)
    optimizer, scheduler = made_by(plain)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(plain(x), x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        scheduler.step(losses[-1])
    return history.batch_losses, losses


class Scaled(nn.Linear):
    """A layer with a parameter of less precision, whose type cannot represent the square of its gradient."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.full((1,), 100.0, dtype=torch.float16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.scale.float())


def clipped(comm: Communicator, x: torch.Tensor) -> tuple[list[float], list[float]]:
    """Return losses with clipped gradients of parameters of two types, of hocket and of plain torch."""

    def make() -> nn.Sequential:
        return nn.Sequential(Scaled(), nn.Linear(WIDTH, WIDTH))

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 100 * F.mse_loss(output, target)

    options = {"loss": loss, "epochs": 3, "max_gradient_norm": 0.5, "num_micro_batches": 1}
    found = train(comm, made(make), (x, x), **options).batch_losses
    plain, wanted = made(make), []
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        wanted.append(loss(plain(x), x))
        wanted[-1].backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    return found, [float(each.detach()) for each in wanted]


class Freezing(Callback):
    def on_epoch_begin(self, trainer: Trainer, epoch: int) -> None:
        next(trainer.executor.split.model.parameters()).requires_grad = epoch == 0


class Batches:
    """A stream of batches without a length."""

    def __iter__(self) -> Any:
        x = normal(8, WIDTH)
        return iter([(x[:4], x[:4]), (x[4:], x[4:])])


class Unreadable:
    def __iter__(self) -> Any:
        raise OSError("no such file")


def in_parts(comm: Communicator, folder: Path) -> dict[str, Any]:
    """Return trainings on a stream: whole; stopped where its first epoch ends; and by one trainer twice."""

    def go(resume: Path | None = None, **options: Any) -> list[float]:
        model = made(chain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rate = LearningRate(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
        callbacks = (rate, Checkpoint(folder / "stream.pt"))
        history = train(comm, model, Batches(), optimizer=optimizer, callbacks=callbacks, resume=resume, **options)
        return history.batch_losses

    whole = go(epochs=3)
    begun = go(epochs=3, max_steps=2)
    found: dict[str, Any] = {"stream": (whole, begun + go(folder / "stream.pt", epochs=3))}
    x = normal(8, WIDTH)
    source = source_of((x, x), comm, batch_size=4, shuffle=False, seed=0, drop_last=False)
    model = made(chain)
    split = graph_of(model).split([0, 1, 3])
    with PipelineExecutor(pipeline.build("1f1b", 2, 2), split, comm, F.mse_loss) as executor:
        own = [each for stage in executor.trained_stages() for each in split.stages[stage].parameters().values()]
        trainer = Trainer(executor, TorchUpdate(torch.optim.SGD(model.parameters(), lr=0.1), own))
        first = run_epochs(trainer, source, 2, max_steps=3)
        second = run_epochs(trainer, source, 2)
    plain = made(chain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    losses = []
    for part in (x[:4], x[4:]) * 2:
        optimizer.zero_grad()
        loss = F.mse_loss(plain(part), part)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found["twice"] = first.batch_losses + second.batch_losses, losses
    found["second epoch"] = second.history["loss"], [sum(losses[2:]) / 2]
    return found


def corners(comm: Communicator, folder: Path) -> dict[str, Any]:
    """Return all results of this file, on two ranks."""
    torch.set_num_threads(1)
    x = normal(8, WIDTH)
    found: dict[str, Any] = {
        "added weights": gradients_at_all_cuts(comm, AddedWeights, normal(3, 8, WIDTH)),
        "strides": gradients_at_all_cuts(comm, Transposed, normal(2, WIDTH, 40, 48)),
        "absent": gradients_at_all_cuts(comm, Aside, normal(2, 3, WIDTH)),
        "names and numbers": gradients_at_all_cuts(comm, Largest, normal(2, 3, WIDTH)),
        "own forward": gradients_at_all_cuts(
            comm, lambda: Residual(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), normal(2, 3, WIDTH)
        ),
        "own gradient": gradients_at_all_cuts(comm, Signs, normal(2, 3, WIDTH)),
        "recomputed": gradients_at_all_cuts(comm, Checkpointed, normal(2, 3, WIDTH).requires_grad_()),
        "of a buffer": gradients_at_all_cuts(comm, OfBuffer, normal(2, 3, WIDTH)),
        "tied": two_pipes_on_a_rank(comm),
        "weighted": weighted(comm),
        "resumed": resumed(comm, folder),
    }
    layer, tanh = made(lambda: nn.Linear(WIDTH, WIDTH)), nn.Tanh()
    repeated = nn.Sequential(layer, tanh, layer, tanh)
    before = repeated(x)
    with PipelineExecutor(pipeline.build("1f1b", 2, 1), graph_of(repeated).split([0, 1, 4]), comm) as executor:
        outputs = executor.forward([MicroBatch({"input": x})]).outputs
    found["repeated"] = all(torch.equal(each, before) for each in outputs.values())
    model = made(Masked)
    train(comm, model, (x, x), epochs=2)
    found["buffers"] = [bool((model.mask == made(Masked).mask).all()), bool((model.turn == made(Masked).turn).all())]
    model = made(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)))
    model[1].eval()
    plain = made(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)))
    plain[1].eval()
    history = train(comm, model, (x, x), epochs=3)
    losses = plain_losses(plain, [(x, x)] * 3, F.mse_loss)
    found["frozen"] = int(model[1].num_batches_tracked), (history.batch_losses, losses)
    model = made(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)))
    plain = made(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)))
    train(comm, model, (x, x), recompute=True)
    for part in x.split(4):
        plain(part)
    found["statistics"] = [[each.tolist() for each in those[1].buffers()] for those in (model, plain)]
    found["jittered"] = train(comm, made(lambda: chain(classes=1)), Jittered(), epochs=2).batch_losses
    batches = [(x[:4], x[:4]), (x[4:], x[4:])]
    plain = made(chain)
    found["list"] = train(comm, made(chain), batches).batch_losses, plain_losses(plain, batches, F.mse_loss)
    found["in parts"] = in_parts(comm, folder)
    model = made(Images)
    images = normal(10, WIDTH, 3)
    train(comm, model, (images, images[:, :, 0].contiguous()), num_micro_batches=4)
    found["padded"] = int(model[0].num_batches_tracked)
    found["plateau"] = on_plateau(comm, x)
    torch.manual_seed(comm.rank)
    model = OfBuffer()
    train(comm, model, (x, x))
    found["of rank 0"] = [each.tolist() for each in model.state_dict().values()]
    found["mixed types"] = clipped(comm, x)
    other = x.clone()
    other[7] += comm.rank

    def failing(output: torch.Tensor, target: torch.Tensor) -> float:
        raise RuntimeError("this metric cannot be")

    found["refused"] = {
        "input": refusal(lambda: train(comm, made(ClampsInput), (x, x), layers_per_partition=[2, 2])),
        "view": refusal(lambda: train(comm, made(WritesToView), (x, x), layers_per_partition=[2, 2])),
        "norm": refusal(lambda: train(comm, made(SharedNorm), (x, x), layers_per_partition=[2, 2])),
        "length": refusal(
            lambda: train(comm, made(Short), (normal(8, 6, WIDTH), x), validation_data=(normal(8, 3, WIDTH), x))
        ),
        "stream": refusal(lambda: train(comm, made(chain), Unreadable())),
        "data": refusal(lambda: train(comm, made(chain), (other, x))),
        "seed": refusal(lambda: train(comm, made(chain), (x, x), seed=comm.rank)),
        "epochs": refusal(lambda: train(comm, made(chain), (x, x), epochs=1 + comm.rank)),
        "unfreezing": refusal(lambda: train(comm, made(chain), (x, x), epochs=2, callbacks=[Freezing()])),
        "empty": refusal(lambda: train(comm, made(chain), [(x[:0], x[:0])])),
        "metric": refusal(lambda: train(comm, made(chain), (x, x), metrics=[failing])),
        "sparse": refusal(
            lambda: train(
                comm,
                made(lambda: nn.Sequential(nn.Embedding(5, WIDTH, sparse=True), nn.Linear(WIDTH, WIDTH))),
                (torch.arange(8) % 5, x),
                strategy="data",
                num_micro_batches=1,
            )
        ),
    }
    return found
