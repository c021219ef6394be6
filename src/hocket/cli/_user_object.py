"""Load an object of the user from a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, InvalidArgument


def load_object(text: str, what: str, names: str) -> Any:
    """Return the object that "package.module:name" or "file.py:name" names.

    Args:
        text: the name that the user gave.
        what: kind of the object, for messages.
        names: other valid names, for messages.

    Raises:
        InvalidArgument: the file, module or name does not exist, or the module raises an exception.
    """
    place, _, name = text.rpartition(":")
    if not place:
        raise InvalidArgument(f"{what} must be {names}, or FILE.py:NAME, or MODULE:NAME, not {text!r}")
    with blaming_code(what, text):
        if place.endswith(".py"):
            path = Path(place)
            if not path.is_file():
                raise InvalidArgument(f"{what} {text!r}: file {place} does not exist")
            spec = importlib.util.spec_from_file_location(f"hocket_user_{path.stem}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(place)
        return getattr(module, name)


@contextmanager
def blaming_code(what: str, text: str) -> Iterator[None]:
    """Turn an exception of the user's code into an InvalidArgument that names the line."""
    try:
        yield
    except (HocketError, ImportError, AttributeError) as error:
        raise InvalidArgument(f"{what} {text!r}: {error}") from None
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        of_syntax = isinstance(error, SyntaxError) and error.filename is not None
        line = f" ({error.filename}:{error.lineno})" if of_syntax else f" ({frame.filename}:{frame.lineno})"  # type: ignore[attr-defined]
        raise InvalidArgument(f"{what} {text!r} fails: {type(error).__name__}: {error}{line}") from error
