"""The `hocket` command: one file a verb, found by its function `register`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hocket.lazy_names import lazy

if TYPE_CHECKING:
    from hocket.cli._command import main

__all__ = ["main"]

__getattr__ = lazy(__name__, {"main": "_command"})
