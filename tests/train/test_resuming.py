"""A training that continues from a file has the number of earlier steps, for random numbers and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hocket as hk
from hocket.errors import InvalidArgument
from hocket.train import Checkpoint, fit
from hocket.train.loop.checkpoint_file import read_checkpoint

from ..naming import raises

pytestmark = pytest.mark.timeout(120)


def _train(comm: hk.Communicator, folder: Path, **options: Any) -> list[float]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    x, y = torch.arange(96.0).reshape(12, 8) / 96, torch.arange(12) % 2
    history = fit(
        model,
        (x, y),
        loss=F.cross_entropy,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=6,
        strategy="model",
        num_micro_batches=2,
        exact=True,
        callbacks=[Checkpoint(folder / "after-{epoch}.pt")],
        comm=comm,
        timeout=60,
        show_progress=False,
        **options,
    )
    return history.batch_losses


def _continue(comm: hk.Communicator, folder: Path) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    whole = _train(comm, folder, epochs=3)
    saved = folder / "after-0.pt"
    return {
        "whole": whole,
        "resumed": _train(comm, folder, epochs=3, resume=saved),
        "limited": _train(comm, folder, epochs=3, resume=saved, max_steps=3),
    }


def test_steps_are_counted_from_the_beginning_of_the_training(tmp_path: Path) -> None:
    for found in hk.spawn(_continue, 2, tmp_path, timeout=100):
        assert len(found["whole"]) == 6
        assert found["resumed"] == found["whole"][2:]
        assert found["limited"] == found["whole"][2:3]


_STATE: dict[str, Any] = {
    "model": {"weight": torch.ones(2)}, "optimizer": {}, "callbacks": {}, "epoch": 1, "num_batches": 0, "totals": {},
    "num_steps": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", _STATE)
@pytest.mark.parametrize("value", [None, "3", [1], -1, 1.5])
def test_a_file_with_a_wrong_field_is_refused(tmp_path: Path, name: str, value: object) -> None:
    torch.save(_STATE | {name: value}, tmp_path / "wrong.pt")
    with raises(InvalidArgument, names=(str(tmp_path / "wrong.pt"), repr(name))):
        read_checkpoint(tmp_path / "wrong.pt", _STATE["model"], ())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x05cos\nsystem\n(S'true'\ntR.", b"x" * 4096])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.pt").write_bytes(content)
    with raises(InvalidArgument, names=str(tmp_path / "other.pt")):
        read_checkpoint(tmp_path / "other.pt", _STATE["model"], ())
