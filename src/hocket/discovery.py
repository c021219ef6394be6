"""The modules of a package, found in its folders: a new entry of a registry is one new file and no edit elsewhere."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection
from types import ModuleType


def module_names(package: ModuleType) -> list[str]:
    """Return the names of a package's modules, sorted; nothing is imported.

    Args:
        package: all folders of its ``__path__`` count, also those that were appended to it. Private names, with a
            leading underscore, do not.
    """
    return sorted(each.name for each in pkgutil.iter_modules(package.__path__) if not each.name.startswith("_"))


def discover(package: ModuleType, besides: Collection[str] = ()) -> list[ModuleType]:
    """Import a package's modules, by `module_names`, and return them in that order.

    Args:
        package: the one to search.
        besides: names of modules that are no entries, but what entries are built on. They are named, not guessed by
            what a module lacks: an entry that forgot to declare itself has to raise, not to disappear.
    """
    names = [name for name in module_names(package) if name not in besides]
    return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
