"""List the files of `hocket.train` that the model given to `fit` passes through, in order of entry.

    python tools/follow_model.py

The model enters a file when another file calls one of its functions with the model among the arguments.
`tests/train/test_walk.py` checks that it enters each file once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import hocket.train

_FOLDER = f"{Path(hocket.train.__file__).parent}/"


def entered_files(model: nn.Module, call: Callable[[], object]) -> list[str]:
    """Return the files that a model enters during a call, one entry per time.

    Args:
        model: model to follow.
        call: function that passes the model to `hocket.train`.
    """
    files: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(_FOLDER):
            return
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not any(frame.f_locals.get(name) is model for name in names):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_FOLDER):
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename != file:
            files.append(file.removeprefix(_FOLDER))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return files


class Traced(nn.Module):
    """A model that is not a chain, so it must be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)) + x)


def walk_of(model: nn.Module) -> list[str]:
    """Return the files that a small model enters during one step of `fit` in this process."""
    data = torch.randn(8, 4), torch.randint(0, 2, (8,))
    return entered_files(
        model,
        lambda: hocket.train.fit(
            model,
            data,
            loss=nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            batch_size=8,
            max_steps=1,
            show_progress=False,
        ),
    )


def main() -> None:
    torch.manual_seed(0)
    for name, model in (("a chain", nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))), ("traced", Traced())):
        files = walk_of(model)
        print(f"{name}: {len(files)} entries into {len(set(files))} files: {', '.join(files)}")


if __name__ == "__main__":
    main()
