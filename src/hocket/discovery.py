"""The modules of a package, found in its folders: a new entry of a registry is one new file and no edit elsewhere."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Collection, Iterable, Sized
from types import ModuleType
from typing import TypeVar

Entry = TypeVar("Entry")


def module_names(package: ModuleType) -> list[str]:
    """Return the names of a package's modules, sorted; nothing is imported.

    Args:
        package: all folders of its ``__path__`` count, also those that were appended to it. Private names, with a
            leading underscore, do not.
    """
    return sorted(each.name for each in pkgutil.iter_modules(package.__path__) if not each.name.startswith("_"))


def discover(package: ModuleType, besides: Collection[str] = (), into: Sized | None = None) -> list[ModuleType]:
    """Import a package's modules, by `module_names`, and return them in that order.

    Args:
        package: the one to search.
        besides: names of modules that are no entries, but what entries are built on. They are named, not guessed by
            what a module lacks: an entry that forgot to declare itself has to raise, not to disappear.
        into: where modules register their entries while they are imported.

    Raises:
        ImportError: a module registered nothing in `into`.
    """
    names = [f"{package.__name__}.{name}" for name in module_names(package) if name not in besides]
    return [_load(name, into) for name in names]


def by_name(what: str, entries: Iterable[tuple[str, Entry]]) -> dict[str, Entry]:
    """Return entries by their names, in the order given.

    Args:
        what: the kind of entry, for the message, such as "backend".
        entries: name and entry of each.

    Raises:
        ImportError: two have the same name.
    """
    found: dict[str, Entry] = {}
    for name, entry in entries:
        if name in found:
            raise ImportError(f"the {what} {name!r} is defined twice")
        found[name] = entry
    return found


def _load(name: str, into: Sized | None) -> ModuleType:
    if into is None or name in sys.modules:
        return importlib.import_module(name)
    before = len(into)
    module = importlib.import_module(name)
    if len(into) == before:
        del sys.modules[name]  # so that the next call raises, too
        raise ImportError(f"{name} registers no entry when it is imported ({module.__file__})")
    return module
