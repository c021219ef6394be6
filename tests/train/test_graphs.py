"""Models as graphs of layers, and models that cannot be traced."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

from hocket.errors import InvalidModel, InvalidType
from hocket.pipeline import Action, PipelineSchedule, Placement
from hocket.session import init
from hocket.train import MicroBatch, PipelineExecutor, SplitModel, graph_of, graph_of_exported

from ..naming import raises
from ..tier import sample
from .models import LOSSES, data_of, make, split_evenly


class ByContent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class ByShape(nn.Module):
    """Python code that depends on a shape, which tracing does not support, and that differs between modes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            if len(x.shape) == 2 and x.shape[1] == 4:
                x = torch.tanh(x)
            x = nn.functional.dropout(x, 0.5, training=self.training)
        return x


class InPlace(nn.Module):
    """Writes to a value that a later layer takes as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value = self.first(x)
        changed = value.mul_(2)
        return self.second(changed) + value


def one_after_the_other(num_stages: int) -> PipelineSchedule:
    actions = [Action("F", stage, 0) for stage in range(num_stages)]
    actions += [Action("B", stage, 0) for stage in reversed(range(num_stages))]
    return PipelineSchedule("one", Placement(((0,) * num_stages,)), 1, (tuple(actions),))


def evaluate(split: SplitModel, inputs: tuple[torch.Tensor, ...]) -> Any:
    with init(backends="shm") as comm, PipelineExecutor(one_after_the_other(split.num_stages), split, comm) as executor:
        batch = [MicroBatch(dict(zip(split.batch_inputs, inputs, strict=True)))]
        return executor.forward(batch).outputs[0]


@pytest.mark.parametrize(("name", "exported"), sample(product(LOSSES, [False, True]), 5))
def test_evaluation_is_that_of_the_whole_model(name: str, exported: bool) -> None:
    model = make(name, 4, torch.float32)
    ((inputs, _),) = data_of(name, 1, torch.float32)
    graph = graph_of_exported(model, inputs) if exported else graph_of(model)
    found = evaluate(split_evenly(graph, 4), inputs)
    wanted = model.eval()(*inputs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert type(found) is type(wanted)


def test_code_that_depends_on_shapes_is_exported() -> None:
    model = ByShape()
    with raises(InvalidModel, names=("ByShape", "graph_of_exported")):
        graph_of(model)
    x = torch.randn(6, 4)
    found = evaluate(graph_of_exported(model, (x,)).split([0, 3, 9]), (x,))
    assert torch.equal(found, model.eval()(x))


def test_what_cannot_be_split() -> None:
    with raises(InvalidModel, names=("ByContent", "graph_of_exported")):
        graph_of(ByContent())
    with raises(InvalidModel, names="ByContent"):
        graph_of_exported(ByContent(), (torch.ones(2, 2),))
    with raises(InvalidType, names=("torch.nn.Module", "3")):
        graph_of(3)  # type: ignore[arg-type]


def test_a_value_that_is_written_to_and_taken_later() -> None:
    split = graph_of(InPlace()).split([0, 1, 2, 4])
    with raises(InvalidModel, names=("stage 1", "'first'", "stage 2")):
        evaluate(split, (torch.ones(2, 4),))
    whole = InPlace()
    found = evaluate(graph_of(whole).split([0, 2, 4]), (torch.ones(2, 4),))
    assert torch.equal(found, whole(torch.ones(2, 4)))
