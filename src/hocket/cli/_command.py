"""Entry point of the `hocket` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line of this process and exit with its code."""
    from hocket.boot.standard_streams import keep_standard_streams

    keep_standard_streams()
    from hocket.cli._application import run_command_line

    sys.exit(run_command_line(sys.argv[1:]))
