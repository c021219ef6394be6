"""Models that are hard for pipelines, and their gradients in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hocket.pipeline import PipelineSchedule
from hocket.train import LayerGraph, SplitModel, graph_of, graph_of_exported
from hocket.train.data.randomness import random_key

WIDTH, SAMPLES = 6, 3  # width of a layer, samples of a micro-batch


class Chain(nn.Sequential):
    """Two layers for each stage."""

    def __init__(self, num_stages: int) -> None:
        super().__init__(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(num_stages))
        )


class Integers(nn.Sequential):
    """Integers in weights, data and losses, so that all sums are exact in float64 in any order: a gradient that differs
    was lost, added twice or scaled wrongly."""

    def __init__(self, num_stages: int) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(num_stages)))
        for parameter in self.parameters():
            parameter.data = torch.randint(-1, 2, parameter.shape).to(parameter.dtype)


class Skips(nn.Module):
    """Values that skip several stages, some taken by several later layers, and some from one of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(10))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = torch.tanh(self.layers[0](x))
        value = kept
        for number, layer in enumerate(self.layers[1:]):
            value = torch.tanh(layer(value)) + kept * self.scale
            if number % 3 == 1:
                value = value * y.sum(-1, keepdim=True) + kept.size(-1)
        return value


class Images(nn.Module):
    """Convolutions, normalisation with running statistics, operations in place, and a value of several tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(4))
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.head = nn.Linear(4, WIDTH)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        value = self.stem(x)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            value = value + convolution(self.relu(norm(value)))
        pooled, places = self.pool(value)
        features = pooled.mean((2, 3))
        return {"out": self.head(features), "places": places, "features": (features, x.shape[0])}


class Language(nn.Module):
    """Token numbers, attention, dropout, and an embedding that shares its weights with the last layer."""

    def __init__(self, dropout: float = 0.0, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.position = nn.Parameter(torch.randn(4, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(WIDTH),
                    "mix": nn.Linear(WIDTH, 3 * WIDTH),
                    "out": nn.Linear(WIDTH, WIDTH),
                    "drop": nn.Dropout(dropout),
                }
            )
            for _ in range(4)
        )
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.embedding(tokens) + self.position
        for block in self.blocks:
            query, key, other = block["mix"](block["norm"](value)).chunk(3, dim=-1)
            attended = F.scaled_dot_product_attention(query, key, other, is_causal=True)
            value = value + block["drop"](block["out"](attended))
        return self.head(self.last(value))


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).sum()


def products(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output * target).sum()


def squares_of_images(output: dict[str, Any], target: torch.Tensor) -> torch.Tensor:
    return squares(output["out"], target) + output["features"][0].sum() * output["features"][1]


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def data_of(name: str, count: int, dtype: torch.dtype) -> list[tuple[tuple[torch.Tensor, ...], torch.Tensor]]:
    """Return inputs and targets of `count` micro-batches."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def one() -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        if name == "skips":
            return (normal(SAMPLES, WIDTH), normal(SAMPLES, WIDTH)), normal(SAMPLES, WIDTH)
        if name == "images":
            return (normal(SAMPLES, 1, 6, 6),), normal(SAMPLES, WIDTH)
        if name == "integers":
            x, y = torch.randint(-2, 3, (2, SAMPLES, WIDTH), generator=generator).to(dtype)
            return (x,), y
        if name.startswith("language"):
            tokens = torch.randint(0, 11, (SAMPLES, 5), generator=generator)
            return (tokens[:, :-1],), tokens[:, 1:]
        return (normal(SAMPLES, WIDTH),), normal(SAMPLES, WIDTH)

    return [one() for _ in range(count)]


LOSSES: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "chain": squares,
    "integers": products,
    "skips": squares,
    "images": squares_of_images,
    "language": cross_entropy,
    "language-untied": cross_entropy,
    "language-dropout": cross_entropy,
}
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "chain": Chain,
    "integers": Integers,
    "skips": lambda _: Skips(),
    "images": lambda _: Images(),
    "language": lambda _: Language(),
    "language-untied": lambda _: Language(tied=False),
    "language-dropout": lambda _: Language(dropout=0.3, tied=False),
}


def make(name: str, num_stages: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name](num_stages).to(dtype)


def split_evenly(graph: LayerGraph, num_stages: int) -> SplitModel:
    """Split a model into stages of equally many layers, so that cuts are at any place."""
    size = len(graph.layers)
    return graph.split([round(number * size / num_stages) for number in range(num_stages + 1)])


def split_of(name: str, num_stages: int, dtype: torch.dtype, *, exported: bool = False) -> SplitModel:
    model = make(name, num_stages, dtype)
    if exported:
        ((inputs, _),) = data_of(name, 1, dtype)
        return split_evenly(graph_of_exported(model, inputs), num_stages)
    return split_evenly(graph_of(model), num_stages)


def micro_batches_of(schedule: PipelineSchedule, pipe: int) -> list[int]:
    return sorted(
        micro_batch
        for actions in schedule.actions
        for action in actions
        if (action.kind, action.stage, action.pipe) == ("F", 0, pipe)
        for micro_batch in action.micro_batches
    )


def gradients_of_one_process(
    name: str, schedule: PipelineSchedule, num_replicas: int, dtype: torch.dtype
) -> dict[str, torch.Tensor | None]:
    """Return gradients of the unsplit model, summed over the micro-batches of a pipe, then pipes, then replicas."""
    size = schedule.num_micro_batches
    data = data_of(name, num_replicas * size, dtype)
    total: dict[str, torch.Tensor | None] = {}
    for replica in range(num_replicas):
        for pipe in range(schedule.num_pipes):
            model = make(name, schedule.num_stages, dtype)
            for micro_batch in micro_batches_of(schedule, pipe):
                inputs, target = data[replica * size + micro_batch]
                LOSSES[name](model(*inputs), target).backward()
            for key, parameter in model.named_parameters(remove_duplicate=False):
                before = total.get(key)
                both = before is not None and parameter.grad is not None
                total[key] = before + parameter.grad if both else before if before is not None else parameter.grad
    return total


def gradients_of_stages_in_turn(
    name: str, schedule: PipelineSchedule, step: int, dtype: torch.dtype
) -> dict[str, torch.Tensor | None]:
    """Return gradients of the stages, which are called one after the other, each with its own random numbers."""
    split = split_of(name, schedule.num_stages, dtype)
    for number, (inputs, target) in enumerate(data_of(name, schedule.num_micro_batches, dtype)):
        values: dict[str, Any] = dict(zip(split.batch_inputs, inputs, strict=True))
        for place, stage in enumerate(split.stages):
            torch.manual_seed(random_key(0, step, place, number))
            values.update(zip(stage.outputs, stage.module(*(values[each] for each in stage.inputs)), strict=True))
        LOSSES[name](split.make_output([values[each] for each in split.outputs]), target).backward()
    return {key: parameter.grad for key, parameter in split.parameters().items()}


def same(found: dict[str, torch.Tensor | None], wanted: dict[str, torch.Tensor | None]) -> Sequence[str]:
    """Return the names of tensors that differ in a bit, or exist on one side only."""
    return [
        key
        for key, gradient in found.items()
        if (gradient is None) != (wanted[key] is None)
        or (gradient is not None and not torch.equal(gradient, wanted[key]))
    ]
