"""Where there is no GPU, or no torch that can use it, these tests fail by name."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.fail(f"tests/gpu needs an NVIDIA GPU, and torch {torch.__version__} finds none", pytrace=False)
