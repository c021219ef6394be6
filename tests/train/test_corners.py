"""What pipelines easily do otherwise than plain torch."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import hocket as hk
from hocket.errors import InvalidModel
from hocket.train import graph_of

from .corner_models import Counts, Noisy, OtherBranch, OtherInEvaluation
from .corners import corners

pytestmark = pytest.mark.timeout(200)


@lru_cache
def ranks() -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        found: list[dict[str, Any]] = hk.spawn(corners, 2, Path(folder), timeout=150)
    return found


@pytest.mark.parametrize("name", ["strides", "absent", "names and numbers", "own forward"])
def test_gradients_are_those_of_plain_torch_wherever_it_is_cut(name: str) -> None:
    assert [rank[name] for rank in ranks()] == [[], []]


def test_a_module_that_comes_twice() -> None:
    assert all(rank["repeated"] for rank in ranks())


def test_a_tied_weight_counts_once_where_both_pipes_are_on_a_rank() -> None:
    plain, exact, other = ranks()[0]["tied"]
    assert (exact, other) == (pytest.approx(plain, rel=1e-6), pytest.approx(plain, rel=1e-6))


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
        assert "other.pt is no training that was saved: it has no 'model'" in other
        assert "text.pt is no training that was saved" in text


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


REFUSED = {
    "input": "InvalidModel: stage 0 writes to 'x', which stage 1 takes too",
    "view": "InvalidModel: stage 1 writes to 'view', which stage 1 takes too, as 'a'",
    "norm": "InvalidModel: stages 0 and 1 share 'norm.num_batches_tracked', which every pass through one of them "
    "changes",
    "length": "InvalidModel: Short was traced with other inputs, and does not do the same with these (Guard failed: "
    "x.size()[1] == 6)",
    "stream": "OSError of another house: no such file",
    "metric": "RuntimeError of another house: this metric cannot be",
    "sparse": "InvalidModel: gradients that are sparse cannot be summed over copies of a stage",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    for rank in ranks():
        assert REFUSED[name] in rank["refused"][name]


def test_data_that_differ_in_the_last_sample_are_refused() -> None:
    for number, rank in enumerate(ranks()):
        assert f"rank {number} and rank {1 - number} have different data" in rank["refused"]["data"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Noisy, r"Noisy draws random numbers in code of its own"),
        (Counts, r"Counts writes to its buffers in code of its own"),
        (OtherBranch, r"OtherBranch has other operations in evaluation than in training"),
        (OtherInEvaluation, r"OtherInEvaluation has other operations in evaluation than in training"),
    ],
)
def test_what_tracing_would_do_once(make: Any, words: str) -> None:
    model = make()
    with pytest.raises(InvalidModel, match=words):
        graph_of(model)
    assert all(not buffer.any() for buffer in model.buffers())
