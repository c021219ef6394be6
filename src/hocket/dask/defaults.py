"""The defaults of ``distributed.comm.hocket`` in Dask's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import yaml

OPTIONS = "distributed.comm.hocket"


def register_defaults() -> None:
    """Give the options their defaults, unless they are set; their schema is in the file beside that of the defaults."""
    found: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "hocket.yaml").read_text())
    dask.config.update_defaults(found)
