"""Which NCCL there is, and whether it loads the hooks as its profiler plugin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hocket.errors import RecorderError
from hocket.observe.run import PLUGIN_VARIABLE, hooks_library
from hocket.observe.shared_object import SharedObject

NCCL_LIBRARY = "libnccl.so.2"
FIRST_VERSION = (2, 27)
"""Earlier versions do not report the number of channels of an operation, so its completion cannot be detected."""
_LONGEST_PATH = 255
"""NCCL cuts a longer one."""
_VERSION = re.compile(rb"NCCL version (\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_REACH_NBYTES = 64 << 20
"""Kernels follow after the texts of the library."""


@dataclass(frozen=True)
class NcclLibrary:
    """A library of NCCL.

    Args:
        path: of the file.
        version: numbers, such as (2, 30, 7); None: the file does not say it.
    """

    path: Path
    version: tuple[int, ...] | None

    @property
    def problem(self) -> str | None:
        """Why its operations are not recorded; None: it loads the hooks."""
        if self.version is None:
            return f"{self.path} does not say its version"
        if self.version[:2] < FIRST_VERSION:
            return (
                f"{self.name} is older than {'.'.join(map(str, FIRST_VERSION))}, the first one that the hooks support"
            )
        return None

    @property
    def name(self) -> str:
        """Name and version."""
        return "NCCL " + ".".join(map(str, self.version or ("of unknown version",)))


def read_nccl(path: str | Path, opened: Path | None = None) -> NcclLibrary:
    """Read the version of a library of NCCL without loading it.

    Args:
        path: of the file, for messages.
        opened: file to read in its place; None: `path`.

    Raises:
        RecorderError: the file cannot be read, or is no shared object.
    """
    with SharedObject(opened or path) as library:
        found = library.search(_VERSION, _REACH_NBYTES)
    return NcclLibrary(Path(path), tuple(int(number) for number in found) if found else None)


def find_nccl() -> Path | None:
    """Return libnccl.so.2 of the package that torch's CUDA wheels need; None: it is not installed."""
    try:
        spec = find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        library = Path(folder) / "lib" / NCCL_LIBRARY
        if library.is_file():
            return library
    return None


def plugin_problem(environment: Mapping[str, str]) -> str | None:
    """Return why NCCL does not load the hooks in a program with this environment; None: it does.

    Raises:
        RecorderError: this build of hocket has no hooks.
    """
    hooks = str(hooks_library())
    value = environment.get(PLUGIN_VARIABLE, "")
    if value not in ("", hooks):
        return f"{PLUGIN_VARIABLE} is already set to {value}: operations of NCCL are not recorded"
    if len(hooks) > _LONGEST_PATH:
        return f"the path {hooks} is longer than {_LONGEST_PATH} characters: NCCL cannot load its plugin"
    return None


def nccl_status() -> tuple[bool, str]:
    """Return whether operations of NCCL can be recorded here, and what is recorded or why not."""
    path = find_nccl()
    if path is None:
        return False, "nvidia-nccl, which torch's CUDA wheels need, is not installed"
    try:
        library = read_nccl(path)
    except RecorderError as error:
        return False, str(error)
    if library.problem:
        return False, library.problem
    return True, f"{library.name} loads the profiler plugin"
