"""Names of a package that are loaded when they are asked for (PEP 562), so that importing the package costs little.

So what a package needs may turn out to be missing when a name is asked for: the error says which extra brings it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.errors import MissingPackage

_EXTRAS = {
    "keras": "keras",
    "matplotlib": "plot",
    "mlxtend": "demo",
    "mpi4py": "mpi",
    "sklearn": "bench",
    "torch": "torch",
    "ucxx": "ucx",
}
_MOST_TOLD = 256  # names whose message is remembered
_OTHER_BACKENDS_OF_KERAS = ("tensorflow", "jax")


def lazy(
    package: str, homes: Mapping[str, str], tell: Callable[[str, Iterable[str]], str] | None = None
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package: ``__getattr__ = lazy(__name__, {"Schedule": "schedule"})``.

    A name that was loaded stays in the package. Type checkers read the names from imports under ``TYPE_CHECKING``.

    Args:
        package: its ``__name__``.
        homes: the submodule that has each name, and behind a colon what it is called there if that differs:
            ``{"load_text": "formats.text:load"}``. "" for a submodule itself: ``{"formats": ""}``.
        tell: returns what to put behind the message for a name that is not in `homes`; called with the name.

    Raises:
        MissingPackage: when a name is asked for whose submodule needs an extra that is not installed.
    """

    @lru_cache(_MOST_TOLD)  # pickle asks every module for a name, again and again
    def told(name: str) -> str:
        return "" if tell is None or name[:1] == "_" else tell(name, homes)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{told(name)}")
        home, _, its_name = homes[name].partition(":")
        try:
            module = importlib.import_module(f"{package}.{home or name}")
        except ModuleNotFoundError as error:
            missing = explain_missing(error, f"{package}.{name}")
            if missing is None:
                raise
            raise missing from None
        value = getattr(module, its_name or name) if home else module
        setattr(sys.modules[package], name, value)
        return value

    return load


def explain_missing(error: ModuleNotFoundError, needed_by: str) -> MissingPackage | None:
    """Return an error that says what to do about a package that is not installed; None where hocket does not know.

    Args:
        error: of the import.
        needed_by: what was asked for, such as "hocket.keras.fit".
    """
    from hocket.errors import MissingPackage  # at its first use: `import hocket` is to stay as cheap as it is

    package = (error.name or "").partition(".")[0]
    if package in _OTHER_BACKENDS_OF_KERAS:
        return MissingPackage(
            f"{needed_by} needs Keras on torch, and Keras looks for {package}: export KERAS_BACKEND=torch", name=package
        )
    if package not in _EXTRAS:
        return None
    return MissingPackage(f"{needed_by} needs {package}: pip install 'hocket[{_EXTRAS[package]}]'", name=package)
