"""The options of verbs that start ranks on several hosts, spelled as torchrun's."""

from __future__ import annotations

from typing import Annotated

import typer

_PANEL = "Several hosts (the same command on each, but for --node-rank)"
NumNodes = Annotated[int, typer.Option("--nnodes", metavar="N", rich_help_panel=_PANEL, help="Hosts of the job.")]
NodeRank = Annotated[
    int, typer.Option("--node-rank", metavar="R", rich_help_panel=_PANEL, help="Number of this host, from 0.")
]
MasterAddr = Annotated[
    str, typer.Option("--master-addr", metavar="HOST", rich_help_panel=_PANEL, help="Name or address of host 0.")
]
MasterPort = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        metavar="PORT",
        show_default=False,
        rich_help_panel=_PANEL,
        help="Free at host 0, as at least one of the eight behind it is.",
    ),
]
