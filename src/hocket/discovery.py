"""Discover the modules of a package: a new entry of a registry is one new file, without an edit elsewhere.

Any error in such a file is a `BadEntry` that names the file; every command that reads the registry shows it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from hocket.errors import BadEntry, InvalidArgument

Entry = TypeVar("Entry")


def module_names(package: ModuleType) -> list[str]:
    """Return the sorted names of a package's modules without importing them; private names are left out.

    Args:
        package: all folders of its ``__path__`` are searched, also appended ones.
    """
    return sorted(each.name for each in pkgutil.iter_modules(package.__path__) if not each.name.startswith("_"))


def discover(
    package: ModuleType, besides: Collection[str] = (), into: MutableMapping[Any, Any] | None = None
) -> list[ModuleType]:
    """Import a package's modules in the order of `module_names`, and return them.

    Args:
        package: the package to search.
        besides: names of modules that are not entries but helpers of entries. They must be listed: an entry that does
            not declare itself raises an error.
        into: registry that modules add their entries to when they are imported.

    Raises:
        BadEntry: a module cannot be imported, or added no entry to `into`; then `into` is unchanged by it.
    """
    names = [f"{package.__name__}.{name}" for name in module_names(package) if name not in besides]
    return [_load(name, into) for name in names]


def declared(
    package: ModuleType,
    attribute: str,
    wanted: str,
    fits: Callable[[Any], bool],
    besides: Collection[str] = (),
) -> list[tuple[ModuleType, Any]]:
    """Import a package's modules in the order of `module_names`; return each with the entry that it declares.

    Args:
        package: the package to search.
        attribute: name of the module attribute that has the entry.
        wanted: description of a valid entry, for the message, such as "a subclass of Backend".
        fits: returns whether a value is a valid entry.
        besides: as for `discover`.

    Raises:
        BadEntry: a module cannot be imported, or its entry is missing or invalid.
    """
    modules = discover(package, besides)
    return [(module, declared_by(module, attribute, wanted, fits)) for module in modules]


def declared_by(module: ModuleType, attribute: str, wanted: str, fits: Callable[[Any], bool]) -> Any:
    """Return the entry that a module declares; see `declared`."""
    try:
        value = getattr(module, attribute)
    except AttributeError:
        raise bad_entry(module.__name__, module.__file__, f"has no {attribute}, which is {wanted}") from None
    if not fits(value):
        raise bad_entry(module.__name__, module.__file__, f"has {attribute} = {value!r}, which must be {wanted}")
    return value


def load(package: ModuleType, name: str) -> ModuleType:
    """Import one of a package's modules.

    Raises:
        BadEntry: the module cannot be imported.
    """
    return _load(f"{package.__name__}.{name}", None)


def takes(function: object, *arguments: str) -> bool:
    """Return whether a function accepts these positional arguments; True if its signature is unknown."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:
        return True
    except TypeError:
        return False
    return True


@contextmanager
def blaming(module: str) -> Iterator[None]:
    """Turn an exception of an entry's module into a BadEntry that names the file, and the line if it is in the file."""
    try:
        yield
    except BadEntry:
        raise
    except Exception as error:
        if isinstance(error, ImportError) and str(error).startswith("HOCKET_ISA="):  # raised by the native module
            raise InvalidArgument(str(error)) from None
        path = _path(module)
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == path]
        text = str(error)
        if isinstance(error, SyntaxError) and error.filename == path:
            lines, text = [error.lineno], error.msg
        raise bad_entry(module, path, f"fails: {type(error).__name__}: {text}", lines[-1] if lines else None) from error


def bad_entry(module: str, path: str | None, flaw: str, line: int | None = None) -> BadEntry:
    """Return the error for a file.

    Args:
        module: name of the module.
        path: path of its file.
        flaw: text after the name, such as "has no ADAPTER".
        line: line in the file.
    """
    place = "" if path is None else f" ({path})" if line is None else f" ({path}:{line})"
    return BadEntry(f"{module} {flaw}{place}", name=module, path=path)


def by_name(what: str, entries: Iterable[tuple[str, ModuleType, Entry]]) -> dict[str, Entry]:
    """Return entries by name, in the given order.

    Args:
        what: kind of entry, for the message, such as "backend".
        entries: (name, module, entry) of each.

    Raises:
        BadEntry: two entries have the same name.
    """
    found: dict[str, tuple[ModuleType, Entry]] = {}
    for name, module, entry in entries:
        if name in found:
            other = found[name][0].__name__
            raise bad_entry(
                module.__name__, module.__file__, f"defines the {what} {name!r}, which {other} already defines"
            )
        found[name] = module, entry
    return {name: entry for name, (_, entry) in found.items()}


def _load(name: str, into: MutableMapping[Any, Any] | None) -> ModuleType:
    if name in sys.modules:
        return importlib.import_module(name)
    before = None if into is None else dict(into)
    try:
        with blaming(name):
            module = importlib.import_module(name)
        if into is not None and before is not None and len(into) == len(before):
            raise bad_entry(name, module.__file__, "registers no entry when it is imported")
    except BadEntry:
        sys.modules.pop(name, None)  # so that the next call raises again
        if into is not None and before is not None:
            into.clear()
            into.update(before)
        raise
    return module


def _path(name: str) -> str | None:
    if name in sys.modules:
        return sys.modules[name].__file__
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin
