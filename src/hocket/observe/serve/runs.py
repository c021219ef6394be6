"""Which runs there are, and what each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from hocket.observe.serve.requests import json_bytes, json_response
from hocket.observe.serve.routes import new_routes
from hocket.observe.serve.state import ServerState
from hocket.observe.serve.view import ViewSource

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.interface import RunInStore, RunStore
    from hocket.observe.store.table_questions import Tables


@dataclass(frozen=True)
class RunList:
    """The names of all runs, the one that was made last first; and what went wrong while nobody asked, by place, such
    as a run that could not be loaded."""

    runs: list[str]
    problems: dict[str, str]


@dataclass(frozen=True)
class RunSummary:
    """A run.

    Args:
        run: its name in the store.
        description: what its sender has said of it.
        command: what was run.
        began_unix_s: when, in seconds since 1970; None: unknown.
        begin_s, end_s: of all its events, in seconds since it began.
        is_live: whether it goes on.
        num_processes, num_hosts: of it.
        num_lost: events that were overwritten before they could be saved; totals have them. None: it is not known yet.
        cost_s: about the seconds that recording took all processes together; None: it is not known, as of few events.
        num_rows: rows of each table.
    """

    run: str
    description: dict[str, Any]
    command: str
    began_unix_s: float | None
    begin_s: float
    end_s: float
    is_live: bool
    num_processes: int
    num_hosts: int
    num_lost: int | None
    cost_s: float | None
    num_rows: dict[str, int]


def run_routes(state: ServerState) -> APIRouter:
    """Return the routes."""
    routes = new_routes("runs")

    @routes.get("/runs", response_model=RunList)
    async def runs() -> Any:
        """The runs."""
        return json_response(RunList(await state.in_thread(state.owner.run_names), state.owner.problems))

    @routes.get("/runs/{run}", response_model=RunSummary)
    async def summary(run: str) -> Any:
        """What a run is."""
        found = await state.found(run)

        async def compute() -> bytes:
            is_live = state.live.is_live(found)
            return await state.in_thread(lambda: json_bytes(summary_of(found, state.owner, is_live=is_live)))

        return json_response(await state.shared.get((found.name, "summary"), compute))

    return routes


def _processes(table: Tables) -> ir.Table:
    rows = table("processes")
    return rows.aggregate(
        num_processes=rows.process.nunique(),
        num_hosts=rows.host.nunique(),
        num_lost=rows.num_lost.sum().fill_null(0),
        cost_s=rows.cost_s.isnan().ifelse(0.0, rows.cost_s).sum().fill_null(0.0),
    )


def summary_of(run: RunInStore, owner: RunStore, *, is_live: bool) -> RunSummary:
    """Return what a run is."""
    source = ViewSource(run, owner)
    (counts,) = source.rows(_processes)
    begin_s, end_s = run.extent()
    return RunSummary(
        run=run.name,
        description=run.description if isinstance(run.description, dict) else {},
        command=source.command,
        began_unix_s=source.began_unix_s,
        begin_s=begin_s,
        end_s=end_s,
        is_live=is_live,
        num_processes=int(counts["num_processes"]),
        num_hosts=int(counts["num_hosts"]),
        num_lost=int(counts["num_lost"]) if counts["num_processes"] else None,
        cost_s=float(counts["cost_s"]) or None,
        num_rows=run.num_rows(),
    )
