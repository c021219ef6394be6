"""Ranks are fresh interpreters: what a test runs on them travels by value. And no test sees the tables of this user."""

from __future__ import annotations

from pathlib import Path

import cloudpickle
import pytest

from . import tables

cloudpickle.register_pickle_by_value(tables)


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> None:
    cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture(autouse=True)
def _surroundings_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOCKET_TABLE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOCKET_RECORD_DIR", str(tmp_path / "records"))
