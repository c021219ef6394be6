"""Options of verbs that start ranks on several hosts; the names are those of torchrun."""

from __future__ import annotations

from typing import Annotated

import typer

from hocket.cli._verbs import optional

_PANEL = "Several hosts (run the same command on each, with its own --node-rank)"
NumNodes = Annotated[
    int, typer.Option("--nnodes", metavar="N", rich_help_panel=_PANEL, help="Number of hosts of the job.")
]
NodeRank = Annotated[
    int, typer.Option("--node-rank", metavar="R", rich_help_panel=_PANEL, help="Number of this host, from 0.")
]
MasterAddr = Annotated[
    str, typer.Option("--master-addr", metavar="HOST", rich_help_panel=_PANEL, help="Name or address of host 0.")
]
MasterPort = Annotated[
    int | None,
    optional(
        "--master-port",
        metavar="PORT",
        rich_help_panel=_PANEL,
        help="A free port of host 0; one of the eight ports after it must be free, too.",
    ),
]
