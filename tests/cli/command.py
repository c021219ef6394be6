"""The command as a user calls it, with a place of its own for tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def hocket(folder: Path, *arguments: str, table: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder.

    Args:
        folder: where it runs; its user's tables lie in `cache` there.
        arguments: of the command.
        table: what HOCKET_TABLE names.
    """
    environ = {name: value for name, value in os.environ.items() if name != "HOCKET_TABLE"}
    if table is not None:
        environ["HOCKET_TABLE"] = str(table)
    return subprocess.run(
        [sys.executable, "-c", "from hocket.cli import main; main()", *arguments],
        cwd=folder,
        env={**environ, "COLUMNS": "100", "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
