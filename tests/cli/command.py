"""The command as a user calls it, with its own folder for tables."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from .. import program


def hocket(folder: Path, *arguments: str, table: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder.

    Args:
        folder: working directory; `cache` in it has the user's tables.
        arguments: arguments of the command.
        table: value of HOCKET_TABLE.
    """
    environ = {name: value for name, value in os.environ.items() if name != "HOCKET_TABLE"}
    if table is not None:
        environ["HOCKET_TABLE"] = str(table)
    environ |= {"COLUMNS": "100", "XDG_CACHE_HOME": str(folder / "cache")}
    return program.hocket(*arguments, folder=folder, environment=environ)
