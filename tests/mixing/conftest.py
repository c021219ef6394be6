"""Ranks are fresh interpreters: what a test runs on them travels by value."""

from __future__ import annotations

import cloudpickle
import pytest

from . import programs

cloudpickle.register_pickle_by_value(programs)


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture(autouse=True)
def _records_of_failures_stay_out_of_the_tree(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_RECORD_DIR", str(tmp_path))
