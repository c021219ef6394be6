"""Runs tests that came with Keras: ``kerass_own.py keras|hocket FOLDER FILE...``.

Prints JSON: the outcome of each test, and the number of trainings by hocket. With `hocket`, `fit` of every model is
`hocket.keras.fit` on one rank; if that raises InvalidModel, Keras trains the model.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import pytest

import hocket as hk
from hocket.errors import InvalidModel
from hocket.keras import fit

who, folder, *names = sys.argv[1:]
SOURCES = Path(keras.__file__).parent / "src"
# Modules that the files import from Keras' repository, and that its wheel lacks.
CONFTEST = """
import pytest

def skip_if_backend(backend, reason):
    return pytest.mark.skipif(backend == "torch", reason=reason)
"""
INI = "[pytest]\nmarkers =\n    requires_trainable_backend: trains\n"
counts = {"trained": 0, "refused": 0}
outcomes: dict[str, str] = {}


class Outcomes:
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcomes[report.nodeid.partition("::")[2]] = report.outcome


def replace_fit() -> None:
    comm = hk.init(backends="shm", timeout=60)
    plain = keras.Model.fit

    def fit_by_hocket(model: Any, *arguments: Any, **options: Any) -> Any:
        names = ("x", "y", "batch_size", "epochs", "verbose", "callbacks")
        options |= dict(zip(names, arguments, strict=False))
        try:
            found = fit(model, **{**options, "verbose": 0}, comm=comm, num_micro_batches=1)
        except InvalidModel:
            counts["refused"] += 1
            return plain(model, **options)
        except BaseException:
            counts["trained"] += 1
            raise
        counts["trained"] += 1
        return found

    keras.Model.fit = fit_by_hocket


Path(folder, "conftest.py").write_text(CONFTEST)
Path(folder, "pytest.ini").write_text(INI)
sys.path.insert(0, folder)
if who == "hocket":
    replace_fit()
options = ["-c", f"{folder}/pytest.ini", "--rootdir", folder, "-p", "no:cacheprovider", "-q"]
files = [str(SOURCES / name) for name in names]
pytest.main([*options, "--continue-on-collection-errors", *files], plugins=[Outcomes()])
print("\n" + json.dumps({"outcomes": outcomes, **counts}))
