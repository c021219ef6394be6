"""The defaults of ``distributed.comm.hocket`` in Dask's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import yaml

OPTIONS = "distributed.comm.hocket"
_FILE: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "hocket.yaml").read_text())
"""The schema is in the file beside it."""


def register_defaults() -> None:
    """Give the options their defaults, unless they are set."""
    dask.config.update_defaults(_FILE)


def option(name: str) -> Any:
    """Return the value of an option.

    The defaults are looked up again: if the protocol was loaded within a ``with dask.config.set(...)`` of one option,
    that statement has removed all of them at its end.
    """
    return dask.config.get(f"{OPTIONS}.{name}", _FILE["distributed"]["comm"]["hocket"][name])
