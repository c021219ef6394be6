"""How bytes went through the layers of the whole run: operations, libraries and algorithms, messages, connections,
devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.observe.analysis.conservation import ConservedBytes
from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables

_OWN = "the library's own"


@dataclass(frozen=True)
class FlowEdge:
    """Bytes from one node to another one; a node is named by its column and its text."""

    source_column: str
    source: str
    target_column: str
    target: str
    nbytes: float


@dataclass(frozen=True)
class FlowView:
    """The answer. Columns from left to right: operation, library, algorithm; and device, to what its bytes were."""

    edges: list[FlowEdge]
    conserved: list[ConservedBytes]


def _operations(table: Tables) -> ir.Table:
    rows = table("breakdown")
    found = rows.group_by("op", "library", "algorithm").aggregate(moved=rows.nbytes.sum())
    return found.filter(found.moved > 0).order_by("op", "library", "algorithm")


def _devices(table: Tables) -> ir.Table:
    rows = table("links")
    return rows.filter(rows.sent_nbytes > 0)[
        ["host", "device", "rank_nbytes", "other_nbytes", "foreign_nbytes", "header_nbytes", "resent_nbytes",
         "residual_nbytes"]
    ].order_by("host", "device")  # fmt: skip


def _conserved(table: Tables) -> ir.Table:
    return table("conserved").order_by("edge", "what")


def _make(source: ViewSource, _: ViewWindow) -> FlowView:
    edges = []
    for row in source.rows(_operations):
        library, algorithm = str(row["library"]) or "unknown", str(row["algorithm"]) or _OWN
        edges.append(FlowEdge("operation", str(row["op"]), "library", library, row["moved"]))
        edges.append(FlowEdge("library", library, "algorithm", algorithm, row["moved"]))
    for row in source.rows(_devices):
        device = f"{row['host']} {row['device']}"
        for column, text in (
            ("rank_nbytes", "messages of ranks"), ("other_nbytes", "to others"), ("foreign_nbytes", "other programs"),
            ("header_nbytes", "headers"), ("resent_nbytes", "sent again"), ("residual_nbytes", "not explained"),
        ):  # fmt: skip
            if row[column] > 0:
                edges.append(FlowEdge("device", device, "bytes", text, row[column]))
    return FlowView(_joined(edges), [ConservedBytes(**row) for row in source.rows(_conserved)])


def _joined(edges: list[FlowEdge]) -> list[FlowEdge]:
    """One edge between each two nodes."""
    sums: dict[tuple[str, str, str, str], float] = {}
    for each in edges:
        key = each.source_column, each.source, each.target_column, each.target
        sums[key] = sums.get(key, 0.0) + each.nbytes
    return [FlowEdge(*key, nbytes) for key, nbytes in sums.items()]


VIEW = View("flow", FlowView, _make, "How bytes went through the layers.")
