"""Print the import graph of rooms of the package, from the source: files, edges, cycles, and upward edges.

    python tools/import_graph.py train comm
    python tools/import_graph.py train --at HEAD~20

`--at` reads another revision; a file that was moved since then has the floor of its current folder. The floors are
those of docs/architecture.md. `tests/test_architecture.py` checks the source with the functions in this file.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/hocket"
_ROW = re.compile(r"^\| (-?\d+) \| ([^|]+) \|", re.MULTILINE)
_WITHIN = re.compile(r"^- `(\w+)/` within, from the lowest: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Floors:
    """The floors defined in docs/architecture.md.

    Args:
        rooms: floor of each room that exists.
        planned: floor of each room that does not exist yet.
        within: for a room, its folders from the lowest to the highest.
        neighbours: pairs of rooms of one floor, of which the first may import the second.
    """

    rooms: Mapping[str, int]
    planned: Mapping[str, int]
    within: Mapping[str, tuple[str, ...]]
    neighbours: frozenset[tuple[str, str]]


def read_floors(page: str) -> Floors:
    """Read floors from the text of docs/architecture.md."""
    rooms: dict[str, int] = {}
    neighbours = set()
    for floor, names in _ROW.findall(page):
        for name, others in re.findall(r"([\w.]+)(?: \(may import ([\w, ]+)\))?", names):
            room = name.removeprefix("hocket.")
            rooms[room] = int(floor)
            neighbours |= {(room, other) for other in others.split(", ") if other}
    (line,) = re.findall(r"^Planned: (.+)\.$", page, re.MULTILINE)
    planned = {
        room: int(floor)
        for names, floor in re.findall(r"([\w, ]+) \((\d+)\)", line)
        for room in re.findall(r"\w+", names)
        if room != "and"
    }
    within = {room: tuple(re.findall(r"`(\w+)/`", folders)) for room, folders in _WITHIN.findall(page)}
    return Floors(rooms, planned, within, frozenset(neighbours))


def imports_of(source: str, modules: Iterable[str]) -> set[str]:
    """Return the modules that a source imports anywhere, including in functions and for type checkers."""
    known = set(modules)
    return {name for node in ast.walk(ast.parse(source)) for name in _names(node, known) if name in known}


def _names(node: ast.AST, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in known else node.module


@dataclass(frozen=True)
class Graph:
    """The files of a room and their imports.

    Args:
        lines: number of lines of each module.
        edges: modules of the room that each module imports. The imports of an `__init__` that only re-exports names
            count only if a file of the room imports that `__init__`, since this loads the modules behind the names.
    """

    lines: Mapping[str, int]
    edges: Mapping[str, frozenset[str]]

    def circles(self) -> list[list[str]]:
        """Return groups of modules that import each other, directly or indirectly.

        The algorithm is that of Tarjan, "Depth-first search and linear graph algorithms", 1972.
        """
        index: dict[str, int] = {}
        lowest: dict[str, int] = {}
        stack: list[str] = []
        cycles = []

        def visit(module: str) -> None:
            index[module] = lowest[module] = len(index)
            stack.append(module)
            for other in sorted(self.edges[module]):
                if other not in index:
                    visit(other)
                    lowest[module] = min(lowest[module], lowest[other])
                elif other in stack:
                    lowest[module] = min(lowest[module], index[other])
            if lowest[module] == index[module]:
                place = stack.index(module)
                group, stack[place:] = stack[place:], []
                if len(group) > 1:
                    cycles.append(sorted(group))

        for module in sorted(self.edges):
            if module not in index:
                visit(module)
        return cycles

    def is_face(self, module: str) -> bool:
        """Return whether a module is the `__init__` of others, which may re-export names from any floor."""
        return any(other.startswith(f"{module}.") for other in self.edges)

    def upwards(self, floor_of: Mapping[str, int]) -> list[tuple[str, str]]:
        """Return edges from a module to one on a higher floor."""
        return [
            (module, other)
            for module, others in sorted(self.edges.items())
            for other in sorted(others)
            if floor_of[other] > floor_of[module] and not self.is_face(module)
        ]


def module_of(path: str) -> str:
    """Return the module name of a file under src/."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def graph_of(sources: Mapping[str, str]) -> Graph:
    """Return the import graph of sources by path."""
    modules = {module_of(path): (path, source) for path, source in sources.items()}
    edges = {module: frozenset(imports_of(source, modules) - {module}) for module, (_, source) in modules.items()}
    imported = frozenset().union(*edges.values())
    for module, (path, source) in modules.items():
        if path.endswith("__init__.py") and "lazy(" in source and module not in imported:
            edges[module] = frozenset()
    return Graph({module: len(source.splitlines()) for module, (_, source) in modules.items()}, edges)


def floors_within(room: str, folders: tuple[str, ...], paths: Mapping[str, str]) -> dict[str, int]:
    """Return the floor of each module within a room: 0 for files in the room's folder, then its subfolders in order.

    Args:
        room: name of the room.
        folders: subfolders of the room, from the lowest to the highest.
        paths: path of each module, which determines its folder.
    """
    floors = {}
    for module, path in paths.items():
        parts = path.removeprefix(f"{SOURCE}/{room}/").split("/")
        floors[module] = 1 + folders.index(parts[0]) if len(parts) > 1 and parts[0] in folders else 0
    return floors


def sources_of(room: str, revision: str | None) -> dict[str, str]:
    """Return the Python sources of a room by path, in the working copy or at a revision."""
    folder = f"{SOURCE}/{room}"
    if revision is None:
        return {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    listed = _git("ls-tree", "-r", "--name-only", revision, folder).split()
    return {path: _git("show", f"{revision}:{path}") for path in listed if path.endswith(".py")}


def moved_since(revision: str) -> dict[str, str]:
    """Return the new paths of files that were moved since a revision, as detected by git."""
    rows = (line.split("\t") for line in _git("diff", "-M30", "--name-status", revision, "--", SOURCE).splitlines())
    return {row[1]: row[2] for row in rows if row[0].startswith("R")}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="+", metavar="ROOM")
    parser.add_argument("--at", metavar="REVISION")
    parser.add_argument("--edges", action="store_true", help="also list the edges")
    arguments = parser.parse_args()
    within = read_floors((ROOT / "docs" / "architecture.md").read_text()).within
    moved = moved_since(arguments.at) if arguments.at else {}
    for room in arguments.rooms:
        sources = sources_of(room, arguments.at)
        graph = graph_of(sources)
        floors = floors_within(room, within.get(room, ()), {module_of(path): moved.get(path, path) for path in sources})
        circles, upwards = graph.circles(), graph.upwards(floors)
        print(
            f"{room}: {len(graph.lines)} files, {sum(graph.lines.values())} lines, "
            f"{sum(map(len, graph.edges.values()))} edges, {len(upwards)} upwards, {len(circles)} cycles of "
            f"{sum(map(len, circles))} files"
        )
        for module, other in upwards:
            print(f"  upwards: {module} -> {other}")
        for group in circles:
            print(f"  cycle: {', '.join(group)}")
        for module, others in sorted(graph.edges.items()) if arguments.edges else ():
            print(f"  {module} -> {', '.join(sorted(others)) or 'nothing'}")


if __name__ == "__main__":
    main()
