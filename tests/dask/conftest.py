"""What all tests of Dask need."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _same_variables() -> Iterator[None]:
    """Dask leaves environment variables for its workers, such as OMP_NUM_THREADS; other tests must not have them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
