"""Whole trainings: every strategy has the losses of one process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

import hocket as hk
from hocket.errors import InvalidArgument, InvalidModel
from hocket.train import arrange, cut_layers, graph_of, make_schedule

from ..naming import raises
from ..program import run_on_two_hosts
from ..tier import full, sample
from .training import losses_of_one_process, model, train, train_all

pytestmark = pytest.mark.timeout(200)

CASES: dict[str, dict[str, Any]] = {
    "data": {"strategy": "data"},
    "model": {"strategy": "model", "num_micro_batches": 2},
    "hybrid": {"strategy": "hybrid", "num_partitions": 2, "num_micro_batches": 3},
    "zb-v": {"strategy": "model", "schedule": "zb-v", "num_micro_batches": 4},
    "chimera": {"strategy": "model", "schedule": "chimera", "num_micro_batches": 4},
    "counts": {"strategy": "model", "layers_per_partition": [1, 5, 1, 2], "num_micro_batches": 6},
    "recompute": {"strategy": "model", "recompute": True, "num_micro_batches": 4},
    "clipped": {"strategy": "model", "num_micro_batches": 4, "max_gradient_norm": 0.3},
    "clipped copies": {"strategy": "hybrid", "num_replicas": 2, "num_micro_batches": 2, "max_gradient_norm": 0.3},
    "stream": {"strategy": "hybrid", "num_replicas": 2, "num_micro_batches": 2, "how": "stream"},
    "by flops": {"strategy": "model", "num_micro_batches": 4, "balance": "flops"},
    "by profile": {"strategy": "hybrid", "num_partitions": 2, "num_micro_batches": 2, "balance": "profile"},
    "by numbers": {"strategy": "model", "num_micro_batches": 2, "balance": [1, 1, 1, 1, 1, 1, 1, 1, 9]},
    "auto": {"strategy": "auto"},
    "stop early": {"strategy": "model", "num_micro_batches": 2, "how": "stop early", "epochs": 5},
}
_ALWAYS = ("data", "model", "hybrid", "stop early", "clipped copies")
CASES = {name: CASES[name] for name in sample(CASES, 3, always=_ALWAYS)}


@lru_cache
def trainings() -> list[dict[str, dict[str, Any]]]:
    found = hk.spawn(train_all, 4, list(CASES.values()), timeout=150)
    return [dict(zip(CASES, of_rank, strict=True)) for of_rank in found]


@pytest.mark.parametrize("name", [name for name in CASES if name != "stop early"])
def test_losses_and_weights_are_those_of_one_process(name: str) -> None:
    losses, state = losses_of_one_process(3, CASES[name].get("max_gradient_norm"))
    for of_rank in trainings():
        assert of_rank[name]["losses"] == pytest.approx(losses, rel=1e-10)
        for key, value in state.items():
            torch.testing.assert_close(of_rank[name]["state"][key], value, rtol=1e-8, atol=1e-10)


def test_all_ranks_have_the_same_numbers_and_weights() -> None:
    first, *others = trainings()
    for other in others:
        for name in CASES:
            assert other[name]["history"] == first[name]["history"]
            for key, value in first[name]["state"].items():
                assert torch.equal(other[name]["state"][key], value)


def test_history_and_callbacks() -> None:
    found = trainings()[0]["model"]
    assert list(found["history"]) == ["loss", "accuracy", "samples_per_s", "val_loss", "val_accuracy"]
    assert all(len(values) == 3 for values in found["history"].values())
    assert found["calls"][:2] == ["begin", "step 1"]
    assert found["calls"][5:7] == ["epoch 0: loss, accuracy, samples_per_s, val_loss, val_accuracy", "step 5"]
    assert found["calls"][-1] == "end"


def test_validation_is_that_of_one_process() -> None:
    found = trainings()[0]["hybrid"]
    network = model()
    network.load_state_dict(found["state"])
    x, y = train.__globals__["data"]()
    output = network(x)
    assert found["history"]["val_loss"][-1] == pytest.approx(torch.nn.functional.cross_entropy(output, y).item())
    assert found["history"]["val_accuracy"][-1] == pytest.approx((output.argmax(-1) == y).double().mean().item())


def test_a_callback_ends_the_training_on_all_ranks() -> None:
    for of_rank in trainings():
        assert len(of_rank["stop early"]["history"]["loss"]) == 2


def test_training_goes_on_bit_for_bit_under_any_split(tmp_path: Path) -> None:
    exact = {"strategy": "model", "num_micro_batches": 4, "exact": True, "layers_per_partition": [4, 5]}
    whole, _ = _train(2, {**exact, "folder": tmp_path})
    resumed, _ = _train(2, {**exact, "layers_per_partition": [2, 7], "resume": tmp_path / "after-0.pt"})
    assert resumed["losses"] == whole["losses"][4:]
    for key, value in whole["state"].items():
        assert torch.equal(resumed["state"][key], value)
    saved = torch.load(tmp_path / "after-2.pt", weights_only=True)
    network = model()
    network.load_state_dict(saved["model"])
    optimizer = torch.optim.Adam(network.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    assert len(optimizer.state) == len(list(network.parameters()))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def _train(num_ranks: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    return [each[0] for each in hk.spawn(train_all, num_ranks, [options], timeout=100)]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"strategy": "both"}, ("data", "model", "hybrid", "auto", "'both'")),
        ({"strategy": "hybrid", "num_partitions": 3}, ("3", "1", "4", "hocket run -n 3")),
        ({"strategy": "data", "num_partitions": 2}, ('"data"', "num_partitions", "1", "2")),
        ({"strategy": "model", "num_replicas": 2}, ('"model"', "num_replicas", "1", "2")),
        ({"strategy": "hybrid"}, ('"hybrid"', "num_partitions", "num_replicas")),
        ({"strategy": "model", "num_partitions": 0}, ("num_partitions", "1", "0")),
    ],
)
def test_ranks_that_do_not_fit(options: dict[str, Any], names: str | tuple[str, ...]) -> None:
    with raises(InvalidArgument, names=names):
        arrange(options.pop("strategy"), 4, **options)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"schedule": "2f2b"}, ("'2f2b'", "1f1b")),
        ({"schedule": "chimera", "num_micro_batches": 0}, ("micro-batches", "1", "0")),
        ({"options": {"num_pairs": 3}, "schedule": "chimera"}, "num_pairs"),
        ({"num_micro_batches": 16}, ("12", "1 x 16", "batch_size")),
    ],
)
def test_schedules_that_do_not_fit(options: dict[str, Any], names: str | tuple[str, ...]) -> None:
    with raises(InvalidArgument, names=names):
        make_schedule(arrange("model", 4), 12, **options)


def test_chimera_needs_an_even_number_of_ranks() -> None:
    with raises(InvalidArgument, names=("chimera", "12", "3")):
        make_schedule(arrange("model", 3), 12, schedule="chimera")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"layers_per_partition": [3, 6]}, ("layers_per_partition", "2", "4")),
        ({"layers_per_partition": [3, 3, 2, 2]}, ("layers_per_partition", "[3, 3, 2, 2]", "10", "9")),
        ({"layers_per_partition": [9, 0, 0, 0]}, ("layers_per_partition", "[9, 0, 0, 0]", "1")),
        ({"costs": [1.0]}, ("costs", "1", "9")),
    ],
)
def test_cuts_that_do_not_fit(options: dict[str, Any], names: str | tuple[str, ...]) -> None:
    arrangement = arrange("model", 4)
    with raises(InvalidArgument, names=names):
        cut_layers(graph_of(model()), make_schedule(arrangement, 12), **options)


def test_more_stages_than_layers() -> None:
    arrangement = arrange("model", 8)
    with raises(InvalidModel, names=("interleaved", "8", "16", "9")):
        cut_layers(graph_of(model()), make_schedule(arrangement, 32, schedule="interleaved"))


@pytest.mark.parametrize("num_local", [pytest.param(1, marks=full), 2])
def test_packed_messages_change_nothing(num_local: int) -> None:
    output = run_on_two_hosts(num_local, Path(__file__).with_name("lossless_ranks.py"), OMP_NUM_THREADS="1")
    assert output.count("all is equal") == 1
