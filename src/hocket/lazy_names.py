"""Names of a package that are loaded when they are asked for (PEP 562), so that importing the package costs little."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package: ``__getattr__ = lazy(__name__, {"Schedule": "schedule"})``.

    A name that was loaded stays in the package. Type checkers read the names from imports under ``TYPE_CHECKING``.

    Args:
        package: its ``__name__``.
        homes: the submodule that has each name, and behind a colon what it is called there if that differs:
            ``{"load_text": "formats.text:load"}``. "" for a submodule itself: ``{"formats": ""}``.

    Raises:
        MissingPackage: when a name is asked for whose submodule needs an extra that is not installed.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, _, its_name = homes[name].partition(":")
        try:
            module = importlib.import_module(f"{package}.{home or name}")
        except ModuleNotFoundError as error:
            from hocket.missing_packages import explain_missing

            missing = explain_missing(error, f"{package}.{name}")
            if missing is None:
                raise
            raise missing from None
        value = getattr(module, its_name or name) if home else module
        setattr(sys.modules[package], name, value)
        return value

    return load
