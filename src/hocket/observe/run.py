"""The environment in which a program, and all programs that it starts, are recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from hocket.errors import InvalidArgument, RecorderError

LAYERS = ("comm", "io")
"""What can be recorded of programs that do not import hocket: communication of torch and MPI, and file I/O."""

_HOOKS = "hocket_hooks.so"
_IN_MEMORY = ("tmpfs", "ramfs")
PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
"""Of NCCL: which library it loads as its profiler."""


def hooks_library() -> Path:
    """Return the path of the library that a recorded program loads first.

    Raises:
        RecorderError: this build of hocket has none.
    """
    paths = [folder / _HOOKS for folder in _package_folders()]
    for path in paths:
        if path.is_file():
            return path
    raise RecorderError(f"{paths[0]} is missing: this hocket was built without the hooks; install it again")


def recording_environment(
    environment: Mapping[str, str], folder: Path, layers: Collection[str] = LAYERS
) -> dict[str, str]:
    """Return an environment in which programs are recorded.

    Args:
        environment: the environment to start from.
        folder: where each process leaves its recorder; an existing folder on a file system in memory.
        layers: some of `LAYERS`.

    Raises:
        InvalidArgument: an unknown layer, or a variable of the environment switches the recorder off.
        RecorderError: this build of hocket has no hooks.
    """
    unknown = [layer for layer in layers if layer not in LAYERS]
    if unknown or not layers:
        raise InvalidArgument(f"layers must be some of {', '.join(LAYERS)}, not {', '.join(unknown) or 'nothing'}")
    _check_variables(environment)
    preloaded = environment.get("LD_PRELOAD", "")
    library = str(hooks_library())
    plugin = {} if "comm" not in layers or environment.get(PLUGIN_VARIABLE) else {PLUGIN_VARIABLE: library}
    return {
        **environment,
        "LD_PRELOAD": library if not preloaded else preloaded if library in preloaded else f"{library}:{preloaded}",
        "HOCKET_OBSERVE": ",".join(layers),
        "HOCKET_RECORDER_FOLDER": str(folder),
        "HOCKET_RECORDER_KEEP": "1",
        "HOCKET_RECORDER": environment.get("HOCKET_RECORDER", "1"),
        **plugin,
    }


def _check_variables(environment: Mapping[str, str]) -> None:
    if environment.get("HOCKET_RECORDER") == "0":
        raise InvalidArgument("HOCKET_RECORDER=0 switches the recorder off: unset it to record")
    budget = environment.get("HOCKET_RECORDER_BUDGET") or "all"
    try:
        is_valid = budget == "all" or 0 < float(budget) <= 100
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidArgument(f"HOCKET_RECORDER_BUDGET must be all, or percent above 0 up to 100, not {budget!r}")


def _package_folders() -> list[Path]:
    package = sys.modules[__name__.partition(".")[0]]  # an editable installation has two folders
    return [Path(folder) for folder in package.__path__]


def memory_folder() -> Path:
    """Return a folder in which this user may write, on a file system in memory if there is one."""
    names = (os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm", "/tmp")
    usable = [Path(name) for name in names if name and os.access(name, os.W_OK | os.X_OK)]
    if not usable:
        raise RecorderError("neither $XDG_RUNTIME_DIR nor /dev/shm nor /tmp can be written")
    return next(filter(is_in_memory, usable), usable[0])


def is_in_memory(folder: Path) -> bool:
    """Return whether a folder is on a file system in memory. On a disk, an event costs as much as a page fault."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    path, place, kind = folder.resolve(), Path("/"), ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        mounted = Path(before.split()[4].encode().decode("unicode_escape", "replace"))  # spaces are written as \040
        if path.is_relative_to(mounted) and len(mounted.parts) >= len(place.parts):  # the last one is on top
            place, kind = mounted, after.split()[0]
    return kind in _IN_MEMORY
