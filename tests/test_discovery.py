"""Every registry finds a file in an additional folder of its package, without any other edit."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hocket.discovery import discover, module_names
from hocket.errors import BadEntry

from .naming import assert_names

TOY = "ENTRY = __name__\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for folder, files in (("first", ("zebra", "_private", "ape")), ("second", ("mole", "ape", "_hidden"))):
        (tmp_path / folder).mkdir()
        for name in files:
            (tmp_path / folder / f"{name}.py").write_text(TOY)
    (tmp_path / "first" / "basis.py").write_text("")
    module = ModuleType("toys_for_discovery")
    module.__path__ = [str(tmp_path / "first"), str(tmp_path / "second")]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield module
    for name in [each for each in sys.modules if each.startswith(f"{module.__name__}.")]:
        del sys.modules[name]


def test_all_folders_are_searched_in_one_order(package: ModuleType) -> None:
    assert module_names(package) == ["ape", "basis", "mole", "zebra"]
    assert not [name for name in sys.modules if name.startswith("toys_for_discovery.")]
    found = [each.__name__ for each in discover(package)]
    assert found == [f"toys_for_discovery.{name}" for name in ("ape", "basis", "mole", "zebra")]
    assert [each.ENTRY.rpartition(".")[2] for each in discover(package, ("basis",))] == ["ape", "mole", "zebra"]


# Package; a toy entry; an expression that is true when its registry has found it.
REGISTRIES = {
    "algorithm": (
        "hocket.collectives.families",
        "from hocket.collectives.registry import algorithm\n"
        "algorithm('all_gather', 'toy', formula='', seconds=lambda *_: 0.0)(lambda num_ranks: None)",
        "hocket.collectives.find_algorithm('all_gather', 'toy')",
    ),
    "exporter": (
        "hocket.tune.exporters",
        "from hocket.tune.export import exporter\nexporter('toy', 'a toy')(lambda table, ranks: '')",
        "'toy' in hocket.tune.export.exporters()",
    ),
    "form": (
        "hocket.pipeline.formats",
        "ENDING = '.toy'\ndump = load = print",
        "'.toy' in hocket.pipeline.files.forms()",
    ),
    "recipe": (
        "hocket.pipeline.schedules",
        "from hocket.pipeline.registry import recipe\nrecipe('toy', bubble='', reference='')(lambda *_: None)",
        "hocket.pipeline.registry.find_recipe('toy')",
    ),
    "kind": (
        "hocket.pipeline.kinds",
        "from hocket.pipeline.kind import Kind, register_kind\nregister_kind(Kind('TOY', 'a toy'))",
        "'TOY' in hocket.pipeline.kind.kinds()",
    ),
    "handler": (
        "hocket.train.run.actions",
        "from hocket.train.run.actions.registry import executes\nexecutes('TOY')(lambda step, action: None)",
        "hocket.train.run.actions.registry.find_handlers(['TOY'])",
    ),
    "verb": (
        "hocket.cli",
        "def register(application):\n    application.command('toy')(lambda: None)",
        "'toy' in hocket.cli._application._application().commands",
    ),
    "backend": (
        "hocket.backends",
        "from hocket.backends.gloo import GlooBackend\nclass ADAPTER(GlooBackend):\n    name = 'toy'",
        "'toy' in hocket.backends.find_backends()",
    ),
    "format": ("hocket.bench.formats", "write = min", "hocket.bench.writers.find_writer('toy') is min"),
    "buffer": (
        "hocket.bench.buffers",
        "from hocket.bench.buffers.numpy import NumpyBuffers\n"
        "class Toys(NumpyBuffers):\n    name = 'toy'\n"
        "KIND = Toys()",
        "hocket.bench.buffers.registry.find_kind('toy')",
    ),
    "benchmark": (
        "hocket.bench.families",
        "from hocket.bench.registry import Benchmark\nBENCHMARKS = (Benchmark('toy', 'Toy', 'us', repr, 'a toy'),)",
        "'toy' in hocket.bench.registry.benchmarks()",
    ),
    "application": (
        "hocket.bench.apps",
        "from hocket.bench.apps.knn import NearestNeighbours\nclass PROBLEM(NearestNeighbours):\n    name = 'toy'",
        "hocket.bench.apps.registry.find_problem('toy')",
    ),
}


def _home(question: str) -> str:
    """Return the module whose function an expression calls."""
    return question.split("(")[0].split(" in ")[-1].rpartition(".")[0]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", REGISTRIES)
def test_registries_find_a_toy(case: str, tmp_path: Path) -> None:
    folder, toy, question = REGISTRIES[case]
    (tmp_path / "toy.py").write_text(toy + "\n")
    home = _home(question)
    code = (
        f"import {home}, {folder}\n"
        f"{folder}.__path__.append({str(tmp_path)!r})\n"
        f"assert {question}\n"
        f"import sys\nassert '{folder}.toy' in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr


def _ask(case: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Evaluate an expression with these additional files in the registry's folder."""
    folder, _, question = REGISTRIES[case]
    home = _home(question)
    with tempfile.TemporaryDirectory() as added:
        for name, text in files.items():
            Path(added, f"{name}.py").write_text(text + "\n")
        code = f"import {home}, {folder}\n{folder}.__path__.append({added!r})\n{question}\n"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", [case for case in REGISTRIES if case != "format"])  # whose name is the file's
def test_two_of_one_name_are_an_error(case: str) -> None:
    toy = REGISTRIES[case][1]
    run = _ask(case, toy=toy, twin=toy.replace("a toy", "another"))
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert re.search(r"BadEntry: .*'.?toy'", last, re.IGNORECASE), run.stderr
    assert_names(last, "twin.py")


_BACKEND = "from hocket.backends.gloo import GlooBackend\nclass ADAPTER(GlooBackend):\n    name = 'toy'\n    "
_RECIPE = "from hocket.pipeline.registry import recipe\n"
_BENCHMARK = "from hocket.bench.registry import Benchmark\n"
# Registry; a mistake; what is named.
MISTAKES = [
    ("verb", "register = 3", "register", "3"),
    ("verb", "def register(): pass", "register"),
    ("verb", "def register(application): pass", "`register`"),
    ("verb", "def register(application):\n    application.nothing()", "AttributeError", "'nothing'", "2"),
    (
        "verb",
        "def register(application):\n    application.command('doctor')(lambda: None)",
        "'doctor'",
        "hocket.cli.doctor",
    ),
    ("benchmark", "BENCHMARKS = 3", "BENCHMARKS", "3", "Benchmark"),
    ("benchmark", "BENCHMARKS = ()", "BENCHMARKS", "()", "Benchmark"),
    ("benchmark", "BENCHMARKS = ('a', 'b')", "BENCHMARKS", "('a', 'b')", "Benchmark"),
    ("benchmark", _BENCHMARK + "BENCHMARKS = Benchmark('toy', 'Toy', 'us', repr, 'a toy')", "BENCHMARKS"),
    ("benchmark", _BENCHMARK + "BENCHMARKS = (Benchmark('toy', 'Toy', 'us', None, ''),)", "'toy'", "None", "2"),
    ("benchmark", _BENCHMARK + "BENCHMARKS = (Benchmark('toy', 'Toy', 'parsec', repr, ''),)", "'parsec'", "us", "MB/s"),
    ("benchmark", _BENCHMARK + "BENCHMARKS = (Benchmark('toy', 'Toy', 'us', repr, '', ('bcast',)),)", "'bcast'"),
    ("recipe", _RECIPE + "recipe('toy', bubble='', reference='')(3)", "'toy'", "num_micro_batches", "3"),
    ("recipe", _RECIPE + "@recipe('toy', bubble='', reference='')\ndef toy(): pass", "'toy'", "num_ranks"),
    ("recipe", _RECIPE + "@recipe\ndef toy(num_ranks, num_micro_batches): pass", "bubble", "2"),
    ("recipe", _RECIPE + "recipe(7, bubble='', reference='')(min)", "7", "str"),
    ("algorithm", "from hocket.collectives.registry import algorithm\n@algorithm\ndef toy(): pass", "2"),
    ("exporter", "from hocket.tune.export import exporter\nexporter('toy', '')(7)", "'toy'", "7"),
    ("handler", "from hocket.train.run.actions.registry import executes\nexecutes('TOY')(7)", "TOY", "7"),
    ("backend", "ADAPTER = 3", "ADAPTER", "3", "Backend"),
    ("backend", "class ADAPTER:\n    name = 'toy'", "ADAPTER", "Backend"),
    (
        "backend",
        "from hocket.backends import Backend\nclass ADAPTER(Backend):\n    name = 'toy'",
        "ADAPTER",
        "open_lanes",
    ),
    ("backend", _BACKEND + "name = 'toy+shm'", "'toy+shm'"),
    ("backend", _BACKEND + "name = 7", "name", "7", "str"),
    ("backend", _BACKEND + "link = (3e-6, 2.0)", "link", "(3e-06, 2.0)", "LinkSpec", "None"),
    ("backend", _BACKEND + "tested = 5", "tested", "5", "Tested"),
    ("backend", _BACKEND + "left_files = 'toy_*'", "left_files", "'toy_*'", "tuple"),
    ("buffer", "KIND = 3", "KIND", "3", "BufferKind"),
    ("application", "PROBLEM = 3", "PROBLEM", "3", "Problem"),
    ("form", "ENDING = 'toy'", "ENDING", "'toy'"),
    ("form", "ENDING = '.toy'\nload = print", "dump"),
    ("format", "write = 3", "write", "3"),
    ("format", "def write(run): return ''", "write", "layout"),
]


# In every registry: no entry, and files that cannot be imported, each with its line.
OF_ALL = [
    ("",),
    ("\n1 / 0", "ZeroDivisionError", "2"),
    ("\nimport not_there", "ModuleNotFoundError", "'not_there'", "2"),
    ("\n2 +", "SyntaxError", "2"),
]
# Reads a registry with each of several folders; prints each result.
_TRY_ALL = """
import importlib, json, sys
import {home}, {package}
for folder in {folders!r}:
    {package}.__path__.append(folder)
    try:
        {question}
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
    else:
        print(json.dumps(["nothing", folder]))
    {package}.__path__.remove(folder)
    sys.modules.pop("{package}.toy", None)
    importlib.invalidate_caches()
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", REGISTRIES)
def test_mistakes_are_one_line_that_names_file_and_value(case: str, tmp_path: Path) -> None:
    package, _, question = REGISTRIES[case]
    mistakes = [*OF_ALL, *(mistake for registry, *mistake in MISTAKES if registry == case)]
    folders = []
    for number, (toy, *_) in enumerate(mistakes):
        folders.append(str(tmp_path / str(number)))
        Path(folders[-1]).mkdir()
        Path(folders[-1], "toy.py").write_text(toy + "\n")
    code = _TRY_ALL.format(home=_home(question), package=package, folders=folders, question=question)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stderr
    for line, folder, (_, *named) in zip(run.stdout.splitlines(), folders, mistakes, strict=True):
        kind, message = json.loads(line)
        assert kind == "BadEntry", message
        assert_names(message, f"{package}.toy", f"{folder}/toy.py", *named)


def test_a_file_that_fails_has_added_nothing(package: ModuleType, tmp_path: Path) -> None:
    found: dict[str, int] = {"there": 1}
    package.found = found  # type: ignore[attr-defined]
    for name in ("ape", "basis", "mole"):
        (tmp_path / "first" / f"{name}.py").write_text(f"import {package.__name__} as home\nhome.found[{name!r}] = 1\n")
    broken = tmp_path / "first" / "zebra.py"
    broken.write_text(f"import {package.__name__} as home\nhome.found['zebra'] = 1\nraise ValueError('half')\n")
    for _ in range(2):  # and also at the next call
        with pytest.raises(BadEntry) as caught:
            discover(package, into=found)
        assert set(found) == {"there", "ape", "basis", "mole"}
        assert (caught.value.name, caught.value.path) == (f"{package.__name__}.zebra", str(broken))
    broken.write_text(f"import {package.__name__} as home\nhome.found['zebra'] = 1\n")
    os.utime(broken, (1, 1))
    discover(package, into=found)
    assert set(found) == {"there", "ape", "basis", "mole", "zebra"}


def test_names_alone_load_nothing() -> None:
    code = (
        "import sys; from hocket.bench.writers import format_names;"
        "assert {'csv', 'json', 'nccl', 'osu'} <= set(format_names());"
        "assert not [name for name in sys.modules if name.startswith('hocket.bench.formats.')]"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stderr
