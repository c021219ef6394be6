"""Cases in which pipelines could easily differ from plain torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

import hocket as hk
from hocket.errors import InvalidModel
from hocket.train import TorchUpdate, graph_of, graph_of_exported

from ..naming import Given, assert_names, raises
from .corner_models import (
    WIDTH,
    Counts,
    HalfPrecise,
    Hooked,
    HookedByItself,
    Noisy,
    NumpyNoisy,
    OtherBranch,
    OtherInEvaluation,
    Signs,
    Teacher,
)
from .corners import corners

pytestmark = pytest.mark.timeout(200)


@lru_cache
def ranks() -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        found: list[dict[str, Any]] = hk.spawn(corners, 2, Path(folder), timeout=150)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "added weights",
        "strides",
        "absent",
        "names and numbers",
        "own forward",
        "own gradient",
        "recomputed",
        "of a buffer",
    ],
)
def test_gradients_are_those_of_plain_torch_wherever_it_is_cut(name: str) -> None:
    assert [rank[name] for rank in ranks()] == [[], []]


def test_a_module_that_comes_twice() -> None:
    assert all(rank["repeated"] for rank in ranks())


def test_a_tied_weight_counts_once_where_both_pipes_are_on_a_rank() -> None:
    plain, exact, other = ranks()[0]["tied"]
    assert (exact, other) == (pytest.approx(plain, rel=1e-6), pytest.approx(plain, rel=1e-6))


def test_passes_that_are_done_again_leave_statistics_alone() -> None:
    for rank in ranks():
        found, plain = rank["statistics"]
        assert found == [pytest.approx(each, rel=1e-6) for each in plain]


def test_buffers_come_back_as_they_are() -> None:
    assert [rank["buffers"] for rank in ranks()] == [[True, True]] * 2


@pytest.mark.parametrize("name", ["counted", "summed"])
def test_parts_without_items_and_batches_smaller_than_parts(name: str) -> None:
    for rank in ranks():
        for found, wanted in rank["weighted"][name].values():
            assert found == pytest.approx(wanted, rel=1e-5)


def test_a_loss_without_targets_is_validated() -> None:
    for rank in ranks():
        found, wanted = rank["weighted"]["no target"]
        assert found == pytest.approx(wanted, rel=1e-5)
        assert found > 0


def test_a_training_goes_on_within_an_epoch_and_with_its_callbacks() -> None:
    for rank in ranks():
        found = rank["resumed"]
        rest, after_epoch, late, after_step = found["losses"]
        assert found["num_epochs"] == 3  # as the loss falls
        assert (after_epoch, after_step) == (rest, late)
        assert found["weights"]


def test_files_that_are_no_trainings_are_refused_on_every_rank() -> None:
    for rank in ranks():
        other, text = rank["resumed"]["refused"]
        assert other.startswith("InvalidArgument")
        assert_names(other, "other.pt", "'model'")
        assert_names(text, "InvalidArgument", "text.pt")


def test_what_was_set_to_evaluation_stays_so() -> None:
    for rank in ranks():
        tracked, (found, wanted) = rank["frozen"]
        assert tracked == 0
        assert found == pytest.approx(wanted, rel=1e-5)


def test_samples_drawn_anew_are_the_same_on_all_ranks_and_others_in_every_epoch() -> None:
    first, second = (rank["jittered"] for rank in ranks())
    assert first == second
    assert first[0] != first[1]


def test_a_list_of_batches() -> None:
    for rank in ranks():
        found, wanted = rank["list"]
        assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("name", ["stream", "twice", "second epoch"])
def test_a_training_in_parts(name: str) -> None:
    for rank in ranks():
        found, wanted = rank["in parts"][name]
        assert found == pytest.approx(wanted, rel=1e-5)


def test_what_fills_up_a_batch_is_in_no_statistics() -> None:
    assert [rank["padded"] for rank in ranks()] == [4 + 2] * 2


def test_a_rate_that_watches_the_loss() -> None:
    for rank in ranks():
        found, wanted = rank["plateau"]
        assert found == pytest.approx(wanted, rel=1e-5)


REFUSED: dict[str, tuple[str, ...]] = {
    "input": ("InvalidModel", "stage 0", "'x'", "stage 1"),
    "view": ("InvalidModel", "stage 1", "'view'", "'a'"),
    "norm": ("InvalidModel", "stages 0 and 1", "'norm.num_batches_tracked'"),
    "length": ("InvalidModel", "Short", "x.size()[1] == 6"),
    "stream": ("OSError", Given("no such file")),
    "metric": ("RuntimeError", Given("this metric cannot be")),
    "seed": ("InvalidArgument", "seed", "0", "rank 0", "1", "rank 1"),
    "epochs": ("InvalidArgument", "epochs", "1", "rank 0", "2", "rank 1"),
    "unfreezing": ("InvalidModel", "'0.weight'", "requires_grad"),
    "empty": ("InvalidArgument", "data"),
    "sparse": ("InvalidModel", "sparse=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    for rank in ranks():
        assert_names(rank["refused"][name], *REFUSED[name])


def test_what_no_stage_uses_is_that_of_rank_0_too() -> None:
    first, second = (rank["of rank 0"] for rank in ranks())
    assert first == second


def test_gradients_of_several_types_are_clipped_as_by_torch() -> None:
    for rank in ranks():
        found, wanted = rank["mixed types"]
        assert found == wanted


def test_a_state_of_another_optimizer() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3))]
    update = TorchUpdate(torch.optim.Adam(parameters, lr=0.5), parameters)
    with pytest.raises(ValueError, match=r"'betas'.*Adam"):
        update.load(torch.optim.SGD(parameters, lr=0.1).state_dict())
    assert update.optimizer.param_groups[0]["lr"] == 0.5


def test_data_that_differ_in_the_last_sample_are_refused() -> None:
    for number, rank in enumerate(ranks()):
        assert_names(rank["refused"]["data"], f"rank {number}", f"rank {1 - number}", "data")


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Noisy, ("Noisy", "torch.nn.Dropout")),
        (NumpyNoisy, ("NumpyNoisy", "torch.nn.Dropout")),
        (Teacher, ("Teacher", "torch.no_grad()")),
        (HalfPrecise, ("HalfPrecise", "torch.autocast('cpu')")),
        (Hooked, ("Hooked", "hooks")),
        (HookedByItself, ("HookedByItself", "hooks")),
        (Counts, ("Counts", "buffers")),
        (OtherBranch, ("OtherBranch", "evaluation", "training")),
        (OtherInEvaluation, ("OtherInEvaluation", "evaluation", "training")),
    ],
)
def test_what_tracing_would_do_once(make: Any, names: tuple[str, ...]) -> None:
    model = make()
    with raises(InvalidModel, names=names):
        graph_of(model)
    assert all(not buffer.any() for buffer in model.buffers())


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Signs, ("torch.export",)),
        (Hooked, ("Hooked", "hooks")),
        (NumpyNoisy, ("NumpyNoisy", "Python", "NumPy")),
    ],
)
def test_what_export_would_leave_out(make: Any, names: tuple[str, ...]) -> None:
    with raises(InvalidModel, names=names):
        graph_of_exported(make(), (torch.ones(2, WIDTH),))
