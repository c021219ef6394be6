"""`hocket train`: from names of a model and data to a trained model; bad input is found before ranks start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hocket.cli._application import run_command_line
from hocket.observe.training_file import TrainingFile

from ..naming import assert_names
from .command import hocket

pytestmark = pytest.mark.timeout(150)

MINE = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))

def data():
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return x, (x.sum(1) > 0).long()

class Depends(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def subclassed():
    import keras

    class Own(keras.Model):
        def call(self, x):
            return x

    return Own()

def compiled():
    import keras

    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(2)])
    made.compile("sgd", "mse")
    return made

def with_lambda():
    import keras
    inputs = keras.Input((28, 28, 1))
    value = keras.layers.Lambda(lambda x: 2 * x, name="doubled")(keras.layers.Flatten()(inputs))
    return keras.Model(inputs, keras.layers.Dense(10)(value))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_a_module_of_the_users(folder: Path) -> None:
    options = [
        "--model",
        "mine.py:model",
        "--data",
        "mine.py:data",
        "--epochs",
        "3",
        "--lr",
        "0.03",
        "--balance",
        "params",
    ]
    run = hocket(folder, "train", *options, "--schedule", "zb-h1", "-m", "4", "--save", "out.pt", "--picture",
                 "step.png", "--json")  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["plan"] == "2 partitions x 1 replicas, zb-h1, 4 micro-batches, stages of 2, 3 layers"
    assert found["epochs"] == [0, 1, 2]
    assert TrainingFile.from_json(run.stdout, "here").curves["loss"] == tuple(found["history"]["loss"])
    assert found["history"]["loss"][2] < found["history"]["loss"][0]
    model = torch.nn.Sequential(
        *(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    )
    model.load_state_dict(torch.load(folder / "out.pt", weights_only=True))
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    assert loss.item() < found["history"]["loss"][2]
    assert (folder / "step.png").read_bytes()[:4] == b"\x89PNG"


def test_a_keras_model(folder: Path) -> None:
    run = hocket(folder, "train", "--model", "resnet11-v2", "--data", "random", "--steps", "2", "--save", "out.keras")
    assert run.returncode == 0, run.stderr
    assert "2 partitions x 1 replicas, 1f1b, 8 micro-batches" in run.stdout
    assert (folder / "out.keras").exists()


def test_what_is_left_to_keras_is_told(folder: Path) -> None:
    options = ["--model", "mine.py:with_lambda", "--data", "random", "--strategy", "data", "--steps", "3"]
    run = hocket(folder, "train", *options)
    assert run.returncode == 0, run.stderr
    reason = "function of 'doubled' is a function of your own"
    assert f"'doubled': {reason}" in run.stdout
    found = json.loads(hocket(folder, "train", *options, "--json").stdout)
    assert found["left_to_keras"] == {"doubled": reason}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--model", "resnet21-v2"], ("ResNet-v2", "9 n + 2", "21")),
        (["--model", "nothing"], ("model", "resnet20-v2", "FILE.py:NAME", "MODULE:NAME", "'nothing'")),
        (["--model", "absent.py:model"], ("'absent.py:model'", "absent.py")),
        (["--model", "mine.py:absent"], "'absent'"),
        (["--model", "mine.py:Depends"], "Depends"),
        (["--model", "mine.py:subclassed"], "keras.Model"),
        (["--model", "mine.py:model", "--data", "nothing"], ("data", "mnist", "random", "FILE.py:NAME", "'nothing'")),
        (["--model", "mine.py:model", "--loss", "nothing"], ("loss", "cross_entropy", "mse", "l1", "'nothing'")),
        (["--model", "mine.py:model", "--optimizer", "nothing"], ("optimizer", "sgd", "adam", "adamw", "'nothing'")),
        (["--model", "mine.py:model", "--strategy", "both"], ("data", "hybrid", "auto", "'both'")),
        (["--model", "mine.py:model", "--balance", "luck"], ("balance", "params", "flops", "profile", "'luck'")),
        (["--model", "mine.py:model", "--partitions", "3"], ("3", "1", "2")),
        (["--model", "mine.py:model", "-n", "6"], ("1f1b", "6", "5")),
        (["--model", "mine.py:model", "--schedule", "2f2b"], ("'2f2b'", "1f1b")),
        (["--model", "mine.py:model", "-m", "64"], ("32", "1 x 64")),
        (["--model", "mine.py:model", "--layers-per-partition", "2,x"], ("--layers-per-partition", "'2,x'")),
        (["--model", "mine.py:model", "--layers-per-partition", "2,2"], ("[2, 2]", "4", "5")),
        (["--model", "mine.py:model", "--engine", "fused cycle_ms=abc"], ("'fused'", "cycle_ms", "'abc'", "1000")),
        (["--model", "mine.py:model", "--engine", "ddp backend=foo"], ("'ddp'", "'foo'", "shm")),
        (["--model", "mine.py:model", "--engine", "parameter-server-async num_servers=0"], ("num_servers", "1", "0")),
        (["--model", "mine.py:model", "-n", "0"], ("-n", "1", "0")),
        (["--model", "mine.py:model", "--picture", "step.xyz"], "xyz"),
        (["--model", "mine.py:model", "--epochs", "0"], ("--epochs", "1", "0")),
        (["--model", "mine.py:model", "--steps", "-1"], ("--steps", "1", "-1")),
        (["--model", "mine.py:compiled", "--lr", "0.1"], ("mine.py:compiled", "--loss", "--optimizer", "--lr")),
        (["--model", "mine.py:model", "--seed", "-1"], ("seed", "0", "-1")),
        (["--model", "mine.py:model", "--batch-size", "0"], ("--batch-size", "1", "0")),
        (["--model", "mine.py:model", "--lr", "-1"], ("--lr", "-1.0")),
        (["--model", "mine.py:model", "--timeout", "0"], ("--timeout", "0.0")),
        (["--model", "mine.py:model", "--save", "absent/model.pt"], "absent"),
        (["--model", "resnet20-v2", "--save", "model.pt"], ("Keras", ".keras", ".h5", "model.pt")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(
    folder: Path,
    options: list[str],
    names: str | tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    options = options if "--data" in options else [*options, "--data", "random"]
    assert run_command_line(["train", *options]) == 2
    told = capsys.readouterr().err
    assert_names(told, "hocket train", *((names,) if isinstance(names, str) else names))
    assert len(told.strip().splitlines()) == 1


def test_bad_input_that_a_rank_finds_is_one_line(folder: Path) -> None:
    done = hocket(
        folder, "train", "--model", "mine.py:model", "--data", "random", "-n", "2", "--strategy", "data", "--engine",
        "parameter-server num_servers=99",
    )  # fmt: skip
    assert done.returncode == 2
    assert_names(done.stderr, "rank", "num_servers", "99")
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if "num_servers" in line]) == 1
