"""Every registry finds a file that was put into a further folder of its package, and nothing else is edited."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from hocket.discovery import discover, module_names

TOY = "ENTRY = __name__\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder, files in (("first", ("zebra", "_private", "ape")), ("second", ("mole", "ape", "_hidden"))):
        (tmp_path / folder).mkdir()
        for name in files:
            (tmp_path / folder / f"{name}.py").write_text(TOY)
    (tmp_path / "first" / "basis.py").write_text("")
    module = ModuleType("toys_for_discovery")
    module.__path__ = [str(tmp_path / "first"), str(tmp_path / "second")]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


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
        "from hocket.collectives.families import ring\n"
        "from hocket.collectives.registry import algorithm, find_algorithm\n"
        "build = find_algorithm('all_gather', 'ring').build\n"
        "algorithm('all_gather', 'toy', formula='', seconds=lambda *_: 0.0)(build)",
        "hocket.collectives.find_algorithm('all_gather', 'toy')",
    ),
    "exporter": (
        "hocket.tune.exporters",
        "from hocket.tune.export import exporter\nexporter('toy', 'a toy')(lambda table, ranks: '')",
        "'toy' in hocket.tune.export.exporters()",
    ),
    "form": ("hocket.pipeline.formats", "ENDING = '.toy'", "'.toy' in hocket.pipeline.files.forms()"),
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
        "hocket.train.actions",
        "from hocket.train.actions.registry import executes\nexecutes('TOY')(lambda step, action: None)",
        "hocket.train.actions.registry.find_handlers(['TOY'])",
    ),
    "verb": (
        "hocket.cli",
        "def register(application):\n    application.command('toy')(lambda: None)",
        "hocket.cli._application.run_command_line(['toy', '--help']) == 0",
    ),
    "backend": (
        "hocket.backends",
        "class ADAPTER:\n    name = 'toy'",
        "'toy' in hocket.backends.find_backends()",
    ),
    "format": ("hocket.bench.formats", "write = repr", "hocket.bench.writers.find_writer('toy') is repr"),
    "buffer": (
        "hocket.bench.buffers",
        "class KIND:\n    name, needs = 'toy', None",
        "hocket.bench.buffers.registry.find_kind('toy')",
    ),
    "benchmark": (
        "hocket.bench.families",
        "from hocket.bench.registry import Benchmark\nBENCHMARKS = (Benchmark('toy', 'Toy', 'us', None, 'a toy'),)",
        "'toy' in hocket.bench.registry.benchmarks()",
    ),
    "application": (
        "hocket.bench.apps",
        "class PROBLEM:\n    name = 'toy'",
        "hocket.bench.apps.registry.find_problem('toy')",
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", REGISTRIES)
def test_registries_find_a_toy(case: str, tmp_path: Path) -> None:
    folder, toy, question = REGISTRIES[case]
    (tmp_path / "toy.py").write_text(toy + "\n")
    home = question.split("(")[0].split(" in ")[-1].rpartition(".")[0]
    code = (
        f"import {home}, {folder}\n"
        f"{folder}.__path__.append({str(tmp_path)!r})\n"
        f"assert {question}\n"
        f"import sys\nassert '{folder}.toy' in sys.modules\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr


def _ask(case: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Ask a registry whose folder has these files, too."""
    folder, _, question = REGISTRIES[case]
    home = question.split("(")[0].split(" in ")[-1].rpartition(".")[0]
    with tempfile.TemporaryDirectory() as added:
        for name, text in files.items():
            Path(added, f"{name}.py").write_text(text + "\n")
        code = f"import {home}, {folder}\n{folder}.__path__.append({added!r})\n{question}\n"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", [case for case in REGISTRIES if case not in ("format", "verb")])
def test_a_file_that_does_not_declare_itself_is_an_error(case: str) -> None:
    run = _ask(case, toy="")
    assert run.returncode == 1
    folder = REGISTRIES[case][0]
    assert re.search(rf"(Attribute|Import)Error: .*{re.escape(folder)}.toy", run.stderr), run.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", [case for case in REGISTRIES if case not in ("format", "verb")])
def test_two_of_one_name_are_an_error(case: str) -> None:
    toy = REGISTRIES[case][1]
    run = _ask(case, toy=toy, twin=toy.replace("a toy", "another"))
    assert run.returncode == 1
    assert re.search(r"(InvalidArgument|ImportError): .*'.?toy'", run.stderr, re.IGNORECASE), run.stderr


def test_names_alone_load_nothing() -> None:
    code = (
        "import sys; from hocket.bench.writers import format_names;"
        "assert {'csv', 'json', 'nccl', 'osu'} <= set(format_names());"
        "assert not [name for name in sys.modules if name.startswith('hocket.bench.formats.')]"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stderr
