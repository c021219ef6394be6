"""Packages load their names on first use."""

import importlib
import os
import py_compile
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hocket
from hocket.lazy_names import _EXTRAS, lazy

from .naming import Given, assert_names, raises

ROOT = Path(__file__).parents[1]
ROOMS = ("bench", "collectives", "observe", "pipeline", "sim", "train", "tune")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "toys_for_lazy_names"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(
        "from hocket.lazy_names import lazy\n"
        "__getattr__ = lazy(__name__, {'one': 'numbers', 'two': 'numbers:zwei', 'lost': 'numbers', 'torn': 'broken'})\n"
    )
    (tmp_path / name / "numbers.py").write_text("one, zwei = 1, 2\n")
    (tmp_path / name / "broken.py").write_text("import no_such_library_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(sys.modules, f"{name}.numbers", raising=False)
    return name


def test_names_are_loaded_once_and_stay(package: str) -> None:
    module = importlib.import_module(package)
    assert f"{package}.numbers" not in sys.modules
    assert (module.one, module.two) == (1, 2)
    assert vars(module)["two"] == 2
    with raises(AttributeError, names=(f"'{package}'", "'three'")):
        module.three  # noqa: B018
    with raises(AttributeError, names="'lost'"):
        module.lost  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="no_such_library_at_all"):
        module.torn  # noqa: B018


TOYS = """
from typing import TYPE_CHECKING
from hocket.lazy_names import lazy
if TYPE_CHECKING:
    from collections.abc import Sequence
    from toys_for_lazy_names import broken
    from toys_for_lazy_names.numbers import one
    from toys_for_lazy_names.numbers import zwei as two
__getattr__ = lazy(__name__)
"""


def test_names_are_those_of_imports_for_type_checkers(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "__init__.py").write_text(TOYS)
    (tmp_path / package / "broken.py").write_text("")
    module = importlib.import_module(package)
    assert f"{package}.numbers" not in sys.modules
    assert (module.one, module.two, module.broken) == (1, 2, sys.modules[f"{package}.broken"])
    for each in ("zwei", "Sequence"):
        with raises(AttributeError, names=(f"'{package}'", f"'{each}'")):
            getattr(module, each)


def test_a_package_without_sources_says_so(package: str, tmp_path: Path) -> None:
    source = tmp_path / package / "__init__.py"
    source.write_text(TOYS)
    py_compile.compile(str(source), str(source.with_suffix(".pyc")))
    source.unlink()
    module = importlib.import_module(package)
    with raises(ImportError, names=package):
        module.one  # noqa: B018


@pytest.mark.parametrize(
    ("missing", "name", "command"),
    [
        ("torch", "hocket.train.Trainer", "pip install 'hocket[torch]'"),
        ("keras", "hocket.keras.fit", "pip install 'hocket[keras]'"),
        ("tensorflow", "hocket.keras.fit", "export KERAS_BACKEND=torch"),
    ],
)
def test_a_missing_extra_says_how_to_install_it(missing: str, name: str, command: str) -> None:
    """In a new interpreter without one package."""
    package, _, attribute = name.rpartition(".")
    program = f"""
import sys
sys.modules[{missing!r}] = None
import {package}
try:
    {package}.{attribute}
except hocket.MissingPackage as error:
    print(error)
"""
    env = {key: value for key, value in os.environ.items() if key != "KERAS_BACKEND" or missing != "tensorflow"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert_names(done.stdout, name, missing, Given(command))


def test_no_package_is_looked_for_before_a_name_is() -> None:
    load = lazy("no_such_package_at_all", {"here": "there"})
    with raises(AttributeError, names=("'no_such_package_at_all'", "'absent'")):
        load("absent")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["hocket", *(f"hocket.{room}" for room in ROOMS)])
def test_every_name_of_a_package_loads(name: str) -> None:
    module = importlib.import_module(name)
    for each in module.__all__:
        assert getattr(module, each) is not None
    with raises(AttributeError, names=(f"'{name}'", "'nonsense'")):
        module.nonsense  # noqa: B018


@pytest.mark.timeout(300)
def test_every_documented_package_is_reached_by_its_name() -> None:
    """As users write them after ``import hocket``, each in an interpreter that has not loaded it yet."""
    pages = (ROOT / "docs/reference").glob("*.md")
    names = [line[4:] for page in pages for line in page.read_text().splitlines() if line.startswith("::: hocket")]
    assert {"hocket.torch.dist", "hocket.tune", "hocket.memory"} <= set(names)
    for name in names:
        command = [sys.executable, "-c", f"import hocket; print({name}.__name__)"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == name, done.stderr


def test_hocket_lists_its_public_names() -> None:
    assert dir(hocket) == sorted(hocket.__all__)


def test_extras_bring_what_they_are_said_to_bring() -> None:
    """The extras in error messages, compared with pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = {"sklearn": "scikit-learn", "ucxx": "ucxx-cu13"}
    for module, extra in _EXTRAS.items():
        names = [re.split(r"[<>=\[]", each)[0] for each in extras[extra]]
        assert distributions.get(module, module) in names, (module, extra)
