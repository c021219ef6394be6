"""The rules of docs/architecture.md that can be checked in the source."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from hocket.backends import find_backends

from .naming import raises

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hocket"

GRAPH = runpy.run_path(str(ROOT / "tools" / "import_graph.py"))
FLOORS = GRAPH["read_floors"]((ROOT / "docs" / "architecture.md").read_text())
TOP = {"__init__", "__main__"}  # only re-export names, or start the command

# Third-party packages and the rooms (or files) that may import them.
ALLOWED = {
    "torch": {"torch", "train", "keras", "kernels", "movement", "optim",
              "collectives/sparse", "plan/capture", "plan/apply", "checkpoint/adapters",
              "observe/sources", "bench/buffers/torch.py", "bench/drivers/torch.py", "cli/_train_inputs.py"},
    "numpy": {""},
    "cloudpickle": {"session", "train/engines"},
    "typer": {"cli"},
    "rich": {"cli", "measure"},
    "mpi4py": {"bench/drivers/mpi4py.py"},
    "cupy": {"bench/buffers/cupy.py"},
    "numba": {"bench/buffers/numba.py"},
    "pycuda": {"bench/buffers/pycuda.py"},
    "keras": {"keras"},
    "mlxtend": {"cli/_train_inputs.py"},
    "dask": {"dask"},
    "distributed": {"dask"},
    "msgpack": {"dask"},
    "tornado": {"dask"},
    "yaml": {"dask"},
    "pandas": {"dask"},
    "duckdb": {"observe"},
    "darshan": {"observe"},
    "ibis": {"observe"},
    "sqlglot": {"observe"},
    "clickhouse_connect": {"observe/store/clickhouse"},
    "urllib3": {"observe/store/clickhouse"},
    "pyarrow": {"observe"},
    "starlette": {"observe"},
    "fastapi": {"observe"},
    "pydantic_core": {"observe"},
    "uvicorn": {"observe"},
    "grpc": {"train/engines"},
    "zfpy": {"collectives/compressed"},
    "fsspec": {"observe"},
    "matplotlib": {"measure/pictures.py", "tune/draw.py", "collectives/draw.py", "pipeline/draw.py", "bench/draw.py"},
}  # fmt: skip
MOST_LINES = 500


def allowed() -> dict[str, set[str]]:
    """`ALLOWED`, and the imports that backends declare for their own files."""
    found = {top: set(rooms) for top, rooms in ALLOWED.items()}
    for adapter in find_backends().values():
        for top, files in adapter.requires.modules.items():
            found.setdefault(top, set()).update(f"backends/{file}.py" for file in files)
    return found


def python_files() -> list[Path]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert files
    return files


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@lru_cache
def imports_of(path: Path) -> tuple[str, ...]:
    return tuple(_imports(ast.parse(path.read_text())))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            # `from hocket import _native` names a room; `from hocket.comm import Communicator` names one already
            yield from (f"{base}.{alias.name}" for alias in node.names) if base == "hocket" else (base,)


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_to_lower_floors(path: Path) -> None:
    room = room_of(path)
    if room in TOP:
        return
    floor = FLOORS.rooms[room]
    for name in imports_of(path):
        if not name.startswith("hocket"):
            continue
        assert name != "hocket", "hocket/__init__.py is never imported from inside"
        target = name.split(".")[1]
        is_lower = target == room or FLOORS.rooms[target] < floor or (room, target) in FLOORS.neighbours
        assert is_lower, f"{room} imports {name}"


def test_every_room_has_a_floor() -> None:
    """The table has all rooms that exist, and no other; planned rooms do not exist."""
    rooms = {room_of(path) for path in python_files()} - TOP | {"_native"}
    assert rooms == set(FLOORS.rooms)
    existing = {room_of(path) for path in PACKAGE.iterdir()}
    assert FLOORS.planned and not existing & FLOORS.planned.keys(), "a room that exists stands in the table"
    assert set(FLOORS.planned.values()) <= set(FLOORS.rooms.values()), "a planned room has a floor of the table"
    for room, folders in FLOORS.within.items():
        assert set(folders) == {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")}


@pytest.mark.parametrize("room", sorted(FLOORS.rooms.keys() - {"_native"}))
def test_no_files_import_each_other_in_a_circle(room: str) -> None:
    sources = GRAPH["sources_of"](room, None)
    if not sources:
        return  # a room of one file
    graph = GRAPH["graph_of"](sources)
    assert graph.circles() == []
    paths = {GRAPH["module_of"](path): path for path in sources}
    assert graph.upwards(GRAPH["floors_within"](room, FLOORS.within.get(room, ()), paths)) == []


def test_a_class_name_occurs_once() -> None:
    found = defaultdict(list)
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_floors_are_read() -> None:
    page = "| 2 | high (may import near); near | x |\n| 0 | hocket._low | x |\n\nPlanned: one (0), two and three (2).\n"
    floors = GRAPH["read_floors"](page)
    assert floors.rooms == {"high": 2, "near": 2, "_low": 0}
    assert floors.planned == {"one": 0, "two": 2, "three": 2}
    assert floors.neighbours == {("high", "near")}


def test_circles_and_edges_upwards_are_found() -> None:
    """Also imports for type checkers and inside functions."""
    sources = {
        "src/hocket/toy/__init__.py": "",
        "src/hocket/toy/low/one.py": "if TYPE_CHECKING:\n    from hocket.toy.high.two import f",
        "src/hocket/toy/low/three.py": "",
        "src/hocket/toy/high/two.py": "def f():\n    import hocket.toy.low.one\n    from hocket.toy.low import three",
    }
    graph = GRAPH["graph_of"](sources)
    assert graph.circles() == [["hocket.toy.high.two", "hocket.toy.low.one"]]
    paths = {GRAPH["module_of"](path): path for path in sources}
    upwards = graph.upwards(GRAPH["floors_within"]("toy", ("low", "high"), paths))
    assert upwards == [("hocket.toy.low.one", "hocket.toy.high.two")]


def test_circles_by_way_of_lazy_names_are_found() -> None:
    lazy = "if TYPE_CHECKING:\n    from hocket.toy.high import two\n__getattr__ = lazy(__name__, {'two': 'high'})"
    sources = {
        "src/hocket/toy/__init__.py": lazy,
        "src/hocket/toy/low.py": "def f():\n    from hocket.toy import two",
        "src/hocket/toy/high.py": "from hocket.toy.low import f",
    }
    assert GRAPH["graph_of"](sources).circles() == [["hocket.toy", "hocket.toy.high", "hocket.toy.low"]]
    del sources["src/hocket/toy/low.py"]
    assert GRAPH["graph_of"](sources).circles() == []


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_third_party_imports_stay_in_their_rooms(path: Path) -> None:
    place = str(path.relative_to(PACKAGE))
    rooms_of = allowed()
    for name in imports_of(path):
        top = name.split(".")[0]
        if top == "hocket" or top in sys.stdlib_module_names:
            continue
        assert top in rooms_of, f"{place} imports {top}, which is no dependency"
        assert any(place.startswith(room) for room in rooms_of[top]), f"{place} must not import {top}"


@pytest.mark.parametrize("name", sorted(find_backends()))
def test_backends_declare_what_they_import(name: str) -> None:
    """Declared files are the adapter's own file or private; declared modules belong to an extra."""
    adapter = find_backends()[name]
    requires = adapter.requires
    for file in (file for files in requires.modules.values() for file in files):
        assert file.startswith("_") or f"hocket.backends.{file}" in {each.__module__ for each in adapter.__mro__}
        assert (PACKAGE / "backends" / f"{file}.py").exists()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not requires.modules or requires.extra in extras


def test_no_file_is_too_long() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    sources = [ROOT / name for name in listed.stdout.split() if name.endswith((".py", ".cpp", ".hpp", ".inl", ".pyi"))]
    assert sources
    lengths = {path: len(path.read_text().splitlines()) for path in sources if path.exists()}
    too_long = {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > MOST_LINES}
    assert not too_long


@pytest.mark.timeout(60)
def test_import_loads_no_third_party_module() -> None:
    """`import hocket` is cheap: no NumPy, no torch, not even the native module."""
    code = "import sys; before = set(sys.modules); import hocket; print('\\n'.join(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(PACKAGE.parent)},
                         capture_output=True, text=True, check=True)  # fmt: skip
    loaded = set(run.stdout.split())
    assert "hocket" in loaded
    foreign = {name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"hocket", "hocket.lazy_names"}


@pytest.mark.timeout(60)
def test_every_public_name_loads() -> None:
    import hocket

    for name in hocket.__all__:
        assert getattr(hocket, name) is not None
    with raises(AttributeError, names="'nonsense'"):
        hocket.nonsense  # noqa: B018


@pytest.mark.timeout(60)
def test_init_loads_no_more_than_it_needs() -> None:
    """A program without torch does not pay for it; the first communicator needs neither NumPy, Rich nor a launcher."""
    code = "import sys, hocket; comm = hocket.init(); comm.barrier(); comm.finalize();print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "hocket.comm.communicator" in loaded
    assert not loaded & {"torch", "numpy", "rich", "typer", "cloudpickle", "matplotlib", "importlib.metadata"}
    assert not loaded & {"hocket.boot.launcher", "hocket.measure.coordinator", "hocket.session.simulator"}


def test_errors_derive_from_ours_and_from_a_builtin() -> None:
    from hocket import errors

    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(classes) > 5
    for each in classes:
        assert issubclass(each, errors.HocketError)
        if each is not errors.HocketError:
            assert issubclass(each, (ValueError, TypeError, RuntimeError, TimeoutError, MemoryError, ImportError))
