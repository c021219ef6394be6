"""Ranks are fresh interpreters: what a test runs on them travels by value."""

from __future__ import annotations

from collections.abc import Iterator

import cloudpickle
import pytest

from . import arrays, cases, data, outcome, product

for module in (arrays, cases, data, outcome, product):
    cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value(request: pytest.FixtureRequest) -> None:
    cloudpickle.register_pickle_by_value(request.module)


@pytest.fixture(scope="module", autouse=True)
def _records_of_failures_stay_out_of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_RECORD_DIR", str(tmp_path_factory.mktemp("records")))
        yield
