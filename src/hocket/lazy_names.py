"""Names of a package that are loaded on first use (PEP 562), so that importing the package is cheap.

So a missing dependency may be found only on the use of a name: the error names the extra that has it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.errors import MissingPackage

_EXTRAS = {
    "dask": "dask",
    "distributed": "dask",
    "keras": "keras",
    "matplotlib": "plot",
    "mlxtend": "demo",
    "mpi4py": "mpi",
    "sklearn": "bench",
    "torch": "torch",
    "ucxx": "ucx",
    **dict.fromkeys(("duckdb", "fastapi", "httptools", "pyarrow", "pydantic_core", "starlette", "uvicorn"), "store"),
}
_MOST_SUGGESTIONS = 256  # cached suggestions
_OTHER_BACKENDS_OF_KERAS = ("tensorflow", "jax")


def lazy(
    package: str, homes: Mapping[str, str] | None = None, suggest: Callable[[str, Iterable[str]], str] | None = None
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package: ``__getattr__ = lazy(__name__)``.

    A loaded name is stored in the package. The names are those of the package's imports under ``if TYPE_CHECKING:``,
    which type checkers read too; the source is read on the first use of a name.

    Args:
        package: its ``__name__``.
        homes: names instead of those imports, each with its submodule; a colon and the name in the submodule follow if
            the names differ: ``{"load_text": "formats.text:load"}``. "" for a submodule itself: ``{"formats": ""}``.
        suggest: called with a name that is not in `homes`, and `homes`; returns text to append to the error message.

    Raises:
        MissingPackage: raised by the returned function if a name's submodule needs an extra that is not installed.
        ImportError: raised by the returned function if the package is installed without its sources.
    """

    @cache
    def names() -> Mapping[str, str]:
        return _imported_for_type_checkers(package) if homes is None else homes

    @lru_cache(_MOST_SUGGESTIONS)  # pickle looks a name up in every module, many times
    def suggestion(name: str) -> str:
        return "" if suggest is None or name[:1] == "_" else suggest(name, names())

    def load(name: str) -> Any:
        if name[:2] == "__" or name not in names():  # Python itself looks for names like __wrapped__
            raise AttributeError(f"module {package!r} has no attribute {name!r}{suggestion(name)}")
        home, _, its_name = names()[name].partition(":")
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


def _imported_for_type_checkers(package: str) -> Mapping[str, str]:
    """Return the names that a package imports from its submodules under ``if TYPE_CHECKING:``, as `homes` of `lazy`."""
    import ast

    spec = sys.modules[package].__spec__
    source = getattr(spec and spec.loader, "get_source", lambda name: None)(package)
    if source is None:
        raise ImportError(f"{package} needs its sources to find its names; install it with its .py files", name=package)
    homes: dict[str, str] = {}
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for each in (node for node in block.body if isinstance(node, ast.ImportFrom)):
                start, _, home = f"{each.module}.".partition(f"{package}.")
                if start:  # of another package, for annotations only
                    continue
                for name in each.names:
                    homes[name.asname or name.name] = f"{home.removesuffix('.')}:{name.name}" if home else ""
    return homes


def explain_missing(error: ModuleNotFoundError, needed_by: str) -> MissingPackage | None:
    """Return an error that names a missing package and its installation; None for packages unknown to hocket.

    Args:
        error: error of the import.
        needed_by: the requested name, such as "hocket.keras.fit".
    """
    from hocket.errors import MissingPackage  # imported here, so that `import hocket` stays cheap

    package = (error.name or "").partition(".")[0]
    if package in _OTHER_BACKENDS_OF_KERAS:
        return MissingPackage(
            f"{needed_by} needs Keras on torch, but Keras imports {package}: export KERAS_BACKEND=torch", name=package
        )
    if package not in _EXTRAS:
        return None
    return MissingPackage(f"{needed_by} needs {package}: pip install 'hocket[{_EXTRAS[package]}]'", name=package)
