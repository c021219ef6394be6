"""What was chosen for each operation, why, and what the next best choice would have taken, in the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket.observe.analysis.choices import RunChoice
from hocket.observe.serve.view import View, ViewSource, ViewWindow

if TYPE_CHECKING:
    import ibis.expr.types as ir

    from hocket.observe.store.table_questions import Tables


@dataclass(frozen=True)
class TuningView:
    """The answer.

    Args:
        choices: those with the most time first.
        saved_s: what all choices have saved against the next best ones, summed up over all ranks.
        lost_s: what other choices would have saved.
        num_unknown: choices whose alternatives are not known.
    """

    choices: list[RunChoice]
    saved_s: float
    lost_s: float
    num_unknown: int


def _choices(table: Tables) -> ir.Table:
    import ibis

    return table("choices").order_by(ibis.desc("seconds"), "op", "least_nbytes", "carrier")


def _make(source: ViewSource, _: ViewWindow) -> TuningView:
    unknown = ("median_s", "expected_s", "other_s", "saved_s")  # NaN in the tables
    rows: list[dict[str, Any]] = [
        {name: None if name in unknown and value != value else value for name, value in row.items()}
        for row in source.rows(_choices)
    ]
    found = [RunChoice(**row) for row in rows]
    known = [each.saved_s for each in found if each.saved_s is not None]
    return TuningView(
        found, sum(max(each, 0.0) for each in known), -sum(min(each, 0.0) for each in known), len(found) - len(known)
    )


VIEW = View("tuning", TuningView, _make, "What was chosen for each operation, why, and what else it could have been.")
