"""Whether the hooks of gloo match a torch: they replace functions whose names hold the types of their parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hocket.errors import RecorderError
from hocket.observe.run import hooks_library
from hocket.observe.shared_object import SharedObject

TORCH_LIBRARY = "libtorch_cpu.so"
"""Has the functions of gloo."""
TESTED_TORCH = ("2.13.0",)
"""Versions whose every operation over gloo is compared with what the hooks record."""
_INTERFACE = "hocket_gloo_interface"
_MOST_INTERFACE_NBYTES = 64 << 10
_MOST_VERSION_NBYTES = 64 << 10


@dataclass(frozen=True)
class GlooInterface:
    """What the hooks rely on in torch.

    Args:
        replaced: functions of which the hooks take the place.
        called: functions that the hooks call.
        operations: numbers of `c10d::OpType`, by name.
        types: numbers of `c10::ScalarType`, by the name of torch's dtype.
    """

    replaced: tuple[str, ...]
    called: tuple[str, ...]
    operations: dict[str, int]
    types: dict[str, int]


def gloo_interface(hooks: Path | None = None) -> GlooInterface:
    """Read what the hooks rely on from their library.

    Args:
        hooks: the library; None: that of this hocket.

    Raises:
        RecorderError: there are no hooks, or this file has no such list.
    """
    path = hooks or hooks_library()
    with SharedObject(path) as library:
        symbols = library.find([_INTERFACE])
        if not symbols:
            raise RecorderError(f"{path} does not say what it relies on in torch: install hocket again")
        text = library.read(symbols[_INTERFACE], _MOST_INTERFACE_NBYTES).rstrip(b"\0").decode("ascii", "replace")
    rows = [line.split() for line in text.splitlines()]
    return GlooInterface(
        replaced=tuple(row[1] for row in rows if row[0] == "replaces"),
        called=tuple(row[1] for row in rows if row[0] == "calls"),
        operations={row[1]: int(row[2]) for row in rows if row[0] == "operation"},
        types={row[1]: int(row[2]) for row in rows if row[0] == "type"},
    )


@dataclass(frozen=True)
class GlooMatch:
    """Whether the hooks record what a torch sends over gloo.

    Args:
        version: of torch; None: unknown.
        missing: functions that this torch does not have under the expected names.
    """

    version: str | None
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of this torch in messages."""
        return f"torch {self.version}" if self.version else "this torch"

    @property
    def is_tested(self) -> bool:
        """Whether this version is one of `TESTED_TORCH`."""
        return (self.version or "").partition("+")[0] in TESTED_TORCH

    @property
    def problem(self) -> str | None:
        """Why operations are not recorded; None: they are."""
        if not self.missing:
            return None
        more = f" and {len(self.missing) - 1} more" if len(self.missing) > 1 else ""
        return f"{self.name} lacks {self.missing[0]}{more}, which the hooks of gloo need"


def match_gloo(library: str | Path, opened: Path | None = None) -> GlooMatch:
    """Compare the hooks with a torch, without loading it.

    Args:
        library: path of its libtorch_cpu.so, for messages and for its version.
        opened: file to read in its place, for example through /proc/PID/root; None: `library`.

    Raises:
        RecorderError: the library or the hooks cannot be read.
    """
    interface = gloo_interface()
    names = (*interface.replaced, *interface.called)
    place = opened or Path(library)
    with SharedObject(place) as torch:
        found = torch.find(names)
    return GlooMatch(_version_beside(place), tuple(name for name in names if name not in found))


def find_torch() -> Path | None:
    """Return libtorch_cpu.so of the torch that programs of this Python import; None: there is none."""
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        library = Path(folder) / "lib" / TORCH_LIBRARY
        if library.is_file():
            return library
    return None


def _version_beside(library: Path) -> str | None:
    try:
        with (library.parent.parent / "version.py").open("rb") as file:
            text = file.read(_MOST_VERSION_NBYTES).decode(errors="replace")
    except OSError:
        return None
    found = re.search(r"^__version__ *(?::[^=]*)?= *['\"]([0-9A-Za-z.+_-]{1,64})['\"]", text, re.MULTILINE)
    return found[1] if found else None
