"""Ranks are fresh interpreters: what a test runs on them travels by value."""

from __future__ import annotations

from pathlib import Path

import cloudpickle
import pytest

from . import bad_calls

cloudpickle.register_pickle_by_value(bad_calls)


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> None:
    cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture(autouse=True)
def _records_of_failures_stay_out_of_the_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOCKET_RECORD_DIR", str(tmp_path / "records"))
